"""Outputs that a network wants back as an input at its next step: states of RNNs, caches."""

from __future__ import annotations

import re

from trtcal.model.model import Model, TensorSpec

WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
MARK = re.compile(r"n|new|next|o|out|output|i|in|input|prev|previous|cur|current")
"""Words by which exporters tell the state before a step from the one behind it: `h_in`, `h_out`."""
CACHE = re.compile(r"(past|present)(_key_values)?", re.IGNORECASE)
UNREAD = re.compile(r"mask|position|type|segment", re.IGNORECASE)
"""Words in the names of rows of integers that are not the tokens of a text."""
LETTER = re.compile(r"([a-z])[noi]")


def state_pairs(model: Model) -> dict[str, str]:
    """Return outputs that look like the next value of an input: output -> input, by name and form.

    >>> from trtcal.model import load_model
    >>> state_pairs(load_model("samples/digits/digits.onnx"))
    {}
    """
    pairs = dict[str, str]()
    for spec in model.inputs:
        same = [output for output in model.outputs if _is_next(output, spec)]
        if len(same) == 1 and same[0].name not in pairs:
            pairs[same[0].name] = spec.name
    return pairs


def caches_of(model: Model) -> dict[str, str]:
    """Return the caches of keys and values, which grow with each step: output -> input."""
    open_inputs = {
        spec.name
        for spec in model.inputs
        if CACHE.search(spec.name) and any(isinstance(size, str) for size in spec.shape[1:])
    }
    return {output: name for output, name in state_pairs(model).items() if name in open_inputs}


def tokens_of(model: Model) -> str | None:
    """Return the input with the tokens of a text, None if there is none."""
    rows = (each for each in model.inputs if len(each.shape) == 2 and each.dtype.startswith("int"))
    return next((spec.name for spec in rows if not UNREAD.search(spec.name)), None)


def _is_next(output: TensorSpec, spec: TensorSpec) -> bool:
    stem = stem_of(spec.name)
    if not stem or stem != stem_of(output.name) or output.dtype != spec.dtype:
        return False
    if len(output.shape) != len(spec.shape):
        return False
    sizes = zip(output.shape, spec.shape, strict=True)
    return all(a == b or isinstance(a, str) or isinstance(b, str) for a, b in sizes)


def stem_of(name: str) -> tuple[str, ...]:
    """Return the words of a name, without those that tell a state before a step from one behind it.

    >>> stem_of("stateN"), stem_of("past_key_values.0.key") == stem_of("present.0.key")
    (('state',), True)
    """
    words = [word.lower() for word in WORD.findall(CACHE.sub("", name))]
    stem = [match[1] if (match := LETTER.fullmatch(word)) else word for word in words]
    stem = [word for word in stem if not MARK.fullmatch(word)]
    return tuple(stem[:-1] if len(stem) > 1 and stem[-1] == "0" else stem)  # h0 is the first h
