"""Outputs that devices saved in their self-tests, held against the golden ones, by tier of device.

A golden input is agreed on by a tier if all of its devices agree: for a classifier on the class, else
within the tolerance. So each input counts once however many devices there are, since devices of a tier
are no independent samples. The interval is for other inputs like these. A tier is below the rest if the
paired interval of the difference is, the rest agreeing where half of the other tiers do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trtcal.documents import Document, parsing, read_npz, to_fields
from trtcal.documents.bounds import parse_json
from trtcal.errors import InputError
from trtcal.runs.bundle.building import read_bundle
from trtcal.runs.bundle.verifying import MANIFEST
from trtcal.stats import Interval, paired_difference, proportion

Array = npt.NDArray[Any]
Arrays = Mapping[str, Array]
CLASSES = "classes"


@dataclass(frozen=True)
class Saved:
    """What one device saved: its tier, and by golden input whether it agrees and is within tolerance.

    `largest` is the largest difference over its tolerance, infinite where an exact output differs.
    """

    tier: str
    agrees: tuple[bool, ...]
    within: tuple[bool, ...]
    largest: float


@dataclass(frozen=True)
class Tier:
    """A tier's agreement in percent of the golden inputs, and how far it is below the others.

    `below` is in points, None for a single tier. `alert` says why this tier is one to look at.
    """

    name: str
    devices: int
    inputs: int
    agreement: Interval
    within: int
    largest: float
    below: Interval | None
    alert: str | None

    def to_document(self) -> Document:
        """Return the tier as JSON."""
        largest = self.largest if math.isfinite(self.largest) else None
        return {**to_fields(self), "largest": largest}


def drift(bundle: Path, files: Sequence[Path], least: float) -> list[Tier]:
    """Return the tiers by name; `least` is the percent of golden inputs that each has to agree on.

    `InputError` if the bundle or a file was changed, or a file is of another bundle.
    """
    manifest, digest = read_bundle(bundle)
    golden = read_npz(bundle / manifest["golden"]["file"])
    parsing(bundle / MANIFEST, partial(_compared, "", manifest, golden, golden))
    saved = [read_saved(path, manifest, digest, golden) for path in files]
    if len({path.resolve() for path in files}) < len(files):  # equal contents are two devices' own
        raise InputError("a file of saved outputs is given twice", "give one file for each device")
    tiers = {
        name: [outputs for outputs in saved if outputs.tier == name]
        for name in {s.tier for s in saved}
    }
    agreed = {
        name: np.all([outputs.agrees for outputs in own], axis=0) for name, own in tiers.items()
    }
    return [_tier(name, tiers[name], agreed, least) for name in sorted(tiers)]


def read_saved(path: Path, manifest: Document, digest: str, golden: Arrays) -> Saved:
    """Read the outputs that one device saved, and hold them against the golden ones."""
    arrays = read_npz(path)
    if "about" not in arrays:
        raise InputError(
            f"{path} has no saved outputs",
            "save them on the device: `trtcal bundle verify BUNDLE --save-outputs FILE`",
        )
    about = parsing(path, lambda: parse_json(str(arrays["about"][()])))
    tier, bundle = parsing(path, lambda: (str(about["tier"]), str(about["manifest"])))
    if f"sha256:{bundle}" != digest:
        raise InputError(
            f"{path} has the outputs of another bundle", "give the outputs of this bundle"
        )
    return parsing(path, lambda: _compared(tier, manifest, arrays, golden))


def _compared(tier: str, manifest: Document, arrays: Arrays, golden: Arrays) -> Saved:
    about, kinds = manifest["golden"], (manifest["task"] or {}).get("outputs", {})
    agrees, within, largest = [], [], 0.0
    for sample in range(about["samples"]):
        pairs = [
            (arrays[f"output.{place}.{sample}"], golden[f"output.{place}.{sample}"], *item)
            for place, item in enumerate(about["tolerances"].items())
        ]
        ratios = [_ratio(output, expected, tolerance) for output, expected, _, tolerance in pairs]
        is_within = max(ratios) <= 1.0
        classes = [
            (output, expected) for output, expected, name, _ in pairs if kinds.get(name) == CLASSES
        ]
        agrees.append(all(map(_same_class, classes)) if classes else is_within)
        within.append(is_within)
        largest = max(largest, *ratios)
    return Saved(tier, tuple(agrees), tuple(within), largest)


def _ratio(output: Array, golden: Array, tolerance: float) -> float:
    """Return the largest difference over the tolerance, infinite where values are not comparable."""
    if output.shape != golden.shape or output.dtype.kind != golden.dtype.kind:
        raise ValueError(f"an output is {output.dtype}{list(output.shape)}")
    same = (output == golden) | ((output != output) & (golden != golden))
    apart = np.abs(output[~same].astype("f8") - golden[~same].astype("f8"))
    if not apart.size:
        return 0.0
    most = float(apart.max())
    return most / tolerance if tolerance > 0.0 and np.isfinite(most) else float("inf")


def _same_class(pair: tuple[Array, Array]) -> bool:
    output, golden = pair
    return bool((output.argmax(axis=-1) == golden.argmax(axis=-1)).all())


def _tier(
    name: str, saved: Sequence[Saved], agreed: Mapping[str, npt.NDArray[np.bool_]], least: float
) -> Tier:
    mine = agreed[name]
    count, inputs = int(mine.sum()), len(mine)
    agreement = proportion(count, inputs).scaled(100.0)
    below = _below(mine, [outputs for other, outputs in agreed.items() if other != name])
    within = int(np.all([outputs.within for outputs in saved], axis=0).sum())
    largest = max(outputs.largest for outputs in saved)
    alert = None
    if below is not None and below.low > 0:
        alert = f"{below.value:.1f} points below the rest"
    elif agreement.value < least:
        alert = f"agrees with the bundle on {count} of {inputs} golden inputs, below {least:g} %"
    return Tier(name, len(saved), inputs, agreement, within, largest, below, alert)


def _below(mine: npt.NDArray[np.bool_], others: Sequence[npt.NDArray[np.bool_]]) -> Interval | None:
    """Return how far a tier's agreement is below that of the others, on the same inputs, in points."""
    if not others:
        return None
    rest = np.mean(others, axis=0) >= 0.5
    lost, won = int((rest & ~mine).sum()), int((mine & ~rest).sum())
    return paired_difference(lost, won, len(mine)).scaled(100.0)
