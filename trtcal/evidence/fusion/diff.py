"""Which fusions differ from one check to another: in the prediction, and in what was built."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from trtcal.documents import Document, parsing, read_document
from trtcal.evidence.diff import Difference, changes_of
from trtcal.evidence.fusion.check import KIND, Seen, check_fusions
from trtcal.evidence.fusion.matching import BROKEN, WHOLE
from trtcal.evidence.fusion.patterns import Patterns
from trtcal.model import load_model

PREDICTION, EVIDENCE = "prediction", "evidence"
Standings = dict[tuple[str, str], str]
"""How each match stands, by its root: the prediction with why, and if known its number of layers."""


def read_standings(path: Path, patterns: Patterns) -> Standings:
    """Read a saved check (`.json`), or check a model."""
    if path.suffix == ".json":
        document = read_document(path, KIND, command="trtcal fusion MODEL -o FILE")
    else:
        document = check_fusions(load_model(path), patterns).to_document()
    return parsing(path, lambda: dict(_standings(document)))


def _standings(document: Document) -> Iterator[tuple[tuple[str, str], str]]:
    for match in document["matches"]:
        if match["prediction"] not in (WHOLE, BROKEN):
            raise ValueError(match["prediction"])
        root, evidence = str(match["root"]), match["evidence"]
        why = "; ".join(str(one["why"]) for one in match["breakers"])
        state = f"{match['pattern']} {match['prediction']}"
        yield (root, PREDICTION), f"{state}: {why}" if why else state
        if evidence is not None and Seen(evidence["state"]).is_known:
            count = len(evidence["layers"])
            yield (root, EVIDENCE), f"{count} layer{'s' * (count > 1)}"


def diff_fusions(before: Standings, after: Standings) -> Difference[None, str]:
    """Compare two checks, match by match as their roots are named."""
    unknown = {key for key in before.keys() ^ after.keys() if key[1] == EVIDENCE}
    a, b = ({key: one[key] for key in one if key not in unknown} for one in (before, after))
    changes = changes_of(a, b, _is_better)
    roots = {root for root, _ in (*before, *after)}
    return Difference(None, None, changes, len(roots - {one.subject for one in changes}))


def _is_better(what: str, before: str, after: str) -> bool | None:
    if what == EVIDENCE:
        return int(after.split()[0]) < int(before.split()[0])
    was, now = (text.endswith(WHOLE) for text in (before, after))
    return None if was == now else now
