"""What was measured already, one line each in a file beside the result: a killed search goes on."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from trtcal.search.losses import Loss
from trtcal.storage import append_line, canonical_json, digest_bytes

NUMBERS = ("noise", "kl", "disagreement", "top1_drop", "noise_error", "kl_error")


class Memory:
    """Losses by fingerprint of all that they depend on; None as path keeps them for this run only."""

    def __init__(self, path: Path | None, of: dict[str, Any]) -> None:
        self.path, self.of = path, of
        self.known: dict[str, Loss] = (
            dict(_read(path)) if path is not None and path.exists() else {}
        )
        self.measured = 0

    def knows(self, what: dict[str, Any]) -> bool:
        """Tell whether a measurement was made."""
        return self._key(what) in self.known

    def recall(self, what: dict[str, Any], measure: Callable[[], Loss]) -> Loss:
        """Return what is known of a measurement, or make it and write it down."""
        key = self._key(what)
        if key not in self.known:
            self.known[key] = measure()
            self.measured += 1
            if self.path is not None:
                line = {"key": key, "loss": self.known[key].to_document()}
                append_line(self.path, json.dumps(line, allow_nan=False))
        return self.known[key]

    def _key(self, what: dict[str, Any]) -> str:
        return digest_bytes(canonical_json({**self.of, **what}))


def _read(path: Path) -> Iterator[tuple[str, Loss]]:
    """Yield keys and losses; lines that are broken or of another kind are measured again."""
    for line in path.read_bytes().splitlines():
        try:
            item = json.loads(line)
            loss = item["loss"]
            noise, *others = (loss[name] for name in NUMBERS)
            if all(one is None or isinstance(one, (int, float)) for one in (noise, *others)):
                noise = math.inf if noise is None else float(noise)
                yield str(item["key"]), Loss(int(loss["samples"]), noise, *others)
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
