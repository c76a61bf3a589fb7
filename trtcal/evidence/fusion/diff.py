"""Which fusions were broken or made from one check to another: prediction and evidence apart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trtcal.documents import Document, parsing, read_document
from trtcal.evidence.fusion.check import KIND, Seen, check_fusions
from trtcal.evidence.fusion.matching import BROKEN, WHOLE
from trtcal.evidence.fusion.patterns import Patterns
from trtcal.model import load_model


@dataclass(frozen=True)
class Standing:
    """How one match stands: its prediction and why, and its number of layers, None if unknown."""

    pattern: str
    prediction: str
    why: str
    layers: int | None


@dataclass(frozen=True)
class Change:
    """One fusion that was `broken` or `made`, or a match that is `gone` or `new`.

    `question` is prediction or evidence, `root` the node that computes the match's result.
    """

    kind: str
    question: str
    pattern: str
    root: str
    before: str
    after: str

    def to_document(self) -> dict[str, str]:
        """Return the JSON form."""
        return asdict(self)


@dataclass(frozen=True)
class Difference:
    """The changes, and how many matches of both are as they were."""

    changes: tuple[Change, ...]
    unchanged: int


def read_standings(path: Path, patterns: Patterns) -> dict[str, Standing]:
    """Read a saved check (`.json`), or check a model; by the root of each match."""
    if path.suffix == ".json":
        document = read_document(path, KIND)
    else:
        document = check_fusions(load_model(path), patterns).to_document()
    standings: dict[str, Standing] = parsing(path, lambda: dict(_standings(document)))
    return standings


def _standings(document: Document) -> Iterator[tuple[str, Standing]]:
    for match in document["matches"]:
        why = "; ".join(str(one["why"]) for one in match["breakers"])
        if match["prediction"] not in (WHOLE, BROKEN):
            raise ValueError(match["prediction"])
        texts = (str(match["pattern"]), str(match["prediction"]), why)
        yield str(match["root"]), Standing(*texts, _layers(match["evidence"]))


def _layers(evidence: dict[str, Any] | None) -> int | None:
    if evidence is None:
        return None
    known = Seen(evidence["state"]).is_known
    return len(evidence["layers"]) if known else None


def diff_fusions(before: dict[str, Standing], after: dict[str, Standing]) -> Difference:
    """Compare two checks, match by match as their roots are named."""
    changes: list[Change] = []
    unchanged = 0
    for root in dict.fromkeys((*before, *after)):
        found = list(_changes(root, before.get(root), after.get(root)))
        changes += found
        unchanged += not found
    return Difference(tuple(changes), unchanged)


def _changes(root: str, a: Standing | None, b: Standing | None) -> Iterator[Change]:
    if a is None or b is None:
        there = a or b
        assert there is not None  # noqa: S101  # a root comes from one of the two
        kind = "new" if a is None else "gone"
        yield Change(kind, "prediction", there.pattern, root, _said(a), _said(b))
        return
    if a.prediction != b.prediction:
        kind = "broken" if b.prediction == BROKEN else "made"
        yield Change(kind, "prediction", b.pattern, root, _said(a), _said(b))
    if a.layers is not None and b.layers is not None and a.layers != b.layers:
        kind = "broken" if b.layers > a.layers else "made"
        counts = (f"{one} layer{'s' * (one > 1)}" for one in (a.layers, b.layers))
        yield Change(kind, "evidence", b.pattern, root, *counts)


def _said(one: Standing | None) -> str:
    if one is None:
        return "no match"
    return f"{one.prediction}: {one.why}" if one.why else one.prediction
