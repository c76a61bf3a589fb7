"""What the page says of repairs: one sentence for who decides, each try and layer for engineers."""

from __future__ import annotations

import math
from typing import Any

from trtcal.report import text
from trtcal.storage import Document

View = dict[str, Any]

RANGES = "ranges: "
LAYERS_SHOWN = 10
WORDS = {
    "equalization": "channels of neighbouring layers scaled alike, so that one range suits all",
    "smoothing": "channels before MatMuls shifted around zero and scaled alike, undone behind",
    "bias absorption": "what a Relu never cuts off moved from one layer's bias into the next's",
    "splitting": "idle channels made into copies of those whose rounding hurts most",
    "centring": "values behind a Relu moved so that zero lies in their middle, at half the step",
    "bias correction by BatchNorm": (
        "biases shifted back by what rounding adds, as the BatchNorm's statistics tell it"
    ),
    "bias correction": "biases shifted so that each channel has the float model's mean again",
    "range refinement": "each range tried wider and narrower, by what it does to the outputs",
    "adaptive rounding": "weights rounded by what the layer computes, not each to the nearest",
    "weight clipping": "the largest weights cut off where finer steps for the others gain more",
}


def repairs(document: Document) -> list[View]:
    """Return each improvement with its sentence, its tries before and after, and its layers."""
    return [
        {
            **one,
            "title": text.some(one["candidates"]) or "no candidate",
            "sentence": _sentence(one),
            "tries": _tries(one),
            "is_sqnr": one["objective"] == "sqnr",
            "layers": [_layer(layer) for layer in one["layers"][:LAYERS_SHOWN]],
        }
        for one in document["repairs"]
    ]


def _sentence(record: Document) -> str:
    """Return what repairs brought over the best ranges without them."""
    kept = [one for one in record["tries"] if one["kept"]]
    plain = [one for one in kept if one["name"].startswith(RANGES)]
    held = f"on {text.count(record['samples']['selection'], 'sample')} that no repair was fitted to"
    if not plain or kept[-1] is plain[-1]:
        return f"No repair of the INT8 model helped {held}."
    before, after = (sqnr_db(one, record["objective"]) for one in (plain[-1], kept[-1]))
    if before is None or after is None:
        return f"Repairs of the INT8 model lowered its loss {held}."
    word = "raised" if after >= before else "took"
    return (
        f"Repairs of the INT8 model {word} its signal to noise from {text.number(before, 1)} to "
        f"{text.number(after, 1)} dB {held}."
    )


def sqnr_db(one: Document, objective: str) -> float | None:
    """Return signal over noise: if that is judged the mean over samples of each one's, else of all."""
    if objective == "sqnr":
        return None if one["value"] is None else -one["value"]
    return -10 * math.log10(one["noise"]) if one["noise"] else None


def _tries(record: Document) -> list[View]:
    """Return each try with its figures, and with those of the best before it."""
    found, best = [], None
    for one in record["tries"]:
        figures = {
            "sqnr": sqnr_db(one, record["objective"]),
            "disagreement": one["disagreement"],
            "value": one["value"],
        }
        before = best or dict.fromkeys(figures)
        found.append({**one, "words": _words(one["name"]), "before": before, "after": figures})
        best = figures if one["kept"] else best
    return found


def _words(name: str) -> str:
    if name.startswith(RANGES):
        return "where each tensor's 256 steps end, chosen by this method"
    return WORDS.get(name, "")


def _layer(layer: Document) -> View:
    share = 100 * layer["rounded"] / layer["weights"] if layer["weights"] else None
    return {**layer, "share": share}
