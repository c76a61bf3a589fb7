"""Forms in which pixels reach networks, valid and wrong ones, and the changes between them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from trtcal.data.dataset import Array

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet, in units of 255
CAFFE_MEAN = (104.0, 117.0, 123.0)

TOLERANCE = 6.0  # pixel values by which a form may miss 0 and 255: filters overshoot
USED, DARK = 80.0, 70.0  # what images use of 0 to 255, at least, and where their dark ends
SAME_SCALE, SAME_ZERO = 1.4, 0.2  # closer forms cannot be distinguished
SCALED = 20.0  # times the contrast, where pixels were divided or were not
VALUES = 1 << 19  # by which forms are recognized, at most
MOST_FORMS = 2  # forms that data are taken for


@dataclass(frozen=True)
class Form:
    """What became of a pixel: `scale` x pixel + `offset` in each channel."""

    name: str
    scale: tuple[float, ...]
    offset: tuple[float, ...]
    text: str

    def then(self, mean: tuple[float, ...], std: tuple[float, ...], name: str, text: str) -> Form:
        """Return the form after another (value - mean) / std."""
        steps = list(zip(self.scale, self.offset, mean, std, strict=True))
        scale = tuple(a / s for a, _, _, s in steps)
        return Form(name, scale, tuple((b - m) / s for _, b, m, s in steps), text)

    @property
    def zero(self) -> float:
        """The pixel that becomes 0."""
        return float(-np.mean(self.offset) / np.mean(self.scale))

    def pixels(self, planes: Array) -> Array:
        """Return the pixels that values in this form came from."""
        scale, offset = (_across(values, planes) for values in (self.scale, self.offset))
        return (planes - offset) / scale


@dataclass(frozen=True)
class Change:
    """A way from the form that data seem to have to one that the model may want."""

    had: Form
    wanted: Form

    def __call__(self, planes: Array) -> Array:
        """Return the values in the form wanted, of the same dtype."""
        forms = (self.had.scale, self.had.offset, self.wanted.scale, self.wanted.offset)
        scale, offset, wider, farther = (_across(form, planes) for form in forms)
        factor, changed = wider / scale, np.empty_like(planes)
        for image, target in zip(planes, changed, strict=True):  # all at once would be in float64
            target[...] = image * factor + (farther - offset * factor)
        return changed

    def code(self, channels: int, channels_last: bool) -> str:
        """Return the change as a line of Python, for an array `x` of samples."""
        forms = (self.had.scale, self.had.offset, self.wanted.scale, self.wanted.offset)
        scale, offset, wider, farther = (
            np.array(form if channels == len(form) else [np.mean(form)]) for form in forms
        )
        width = scale / wider
        mean = offset - farther * width

        def text(values: Array) -> str:
            if np.ptp(values) <= 1e-6 * np.max(np.abs(values)):
                return f"{values[0]:.6g}"
            numbers = ", ".join(f"{value:.6g}" for value in values)
            return f"np.float32([{numbers}]){'' if channels_last else '.reshape(3, 1, 1)'}"

        factor = f"* {text(1 / width)}" if width.max() < 1 else f"/ {text(width)}"
        return f"x = (x - {text(mean)}) {factor}" if mean.any() else f"x = x {factor}"

    @property
    def gain(self) -> float:
        """How much larger differences of values become."""
        return float(np.mean(self.wanted.scale) / np.mean(self.had.scale))

    @property
    def is_slight(self) -> bool:
        """Whether both forms are nearly the same."""
        distance = abs(self.had.zero - self.wanted.zero) / 255
        return 1 / SAME_SCALE < self.gain < SAME_SCALE and distance < SAME_ZERO

    @property
    def is_mild(self) -> bool:
        """Whether the model may well recognize something without it."""
        return 1 / SCALED < self.gain < SCALED and not self.is_from_wrong

    @property
    def is_from_wrong(self) -> bool:
        """Whether no model is trained on the form that data have (some are: (pixel - mean) / 255)."""
        return self.had.name in FAULT_OF and self.had.name != f"{MEAN_SUBTRACTED.name} over 255"

    @property
    def fault(self) -> str:
        """The kind of issue that this change corrects."""
        if self.had.name in FAULT_OF:
            return FAULT_OF[self.had.name]
        if self.gain < 1 / SCALED:
            return "pixels_not_scaled"
        if self.gain > SCALED:
            return "pixels_scaled"
        plain = self.had.name in ("unit", "raw")
        return "not_normalized" if plain else "other_normalization"


FIXES = {
    "pixels_not_scaled": "divide the pixels before they are normalized",
    "pixels_scaled": "leave the pixels at 0 to 255: do not divide them",
    "scaled_twice": "divide the pixels by 255 once, not twice",
    "not_normalized": "subtract the mean from the pixels and divide by the std, as in training",
    "normalized_twice": "subtract the mean and divide by the std once, not twice",
    "other_normalization": "normalize the pixels as in training",
}

ZERO, HALF, ONE, FULL = ((value,) * 3 for value in (0.0, 0.5, 1.0, 255.0))
RAW = Form("raw", ONE, ZERO, "0 to 255")
UNIT = RAW.then(ZERO, FULL, "unit", "0 to 1")
SIGNED = UNIT.then(HALF, HALF, "signed", "-1 to 1")
NORMAL = UNIT.then(MEAN, STD, "normal", "0 to 1 minus ImageNet's mean, over its std")
MEAN_SUBTRACTED = RAW.then(CAFFE_MEAN, ONE, "mean-subtracted", "0 to 255 minus (104, 117, 123)")
VALID = (RAW, UNIT, SIGNED, NORMAL, MEAN_SUBTRACTED)
SETTINGS: dict[str, dict[str, Any]] = {
    RAW.name: {"scale": 1, "mean": [0], "std": [1]},
    UNIT.name: {"scale": "1/255", "mean": [0], "std": [1]},
    SIGNED.name: {"scale": "1/255", "mean": [0.5], "std": [0.5]},
    NORMAL.name: {"scale": "1/255", "mean": list(MEAN), "std": list(STD)},
    MEAN_SUBTRACTED.name: {"scale": 1, "mean": list(CAFFE_MEAN), "std": [1]},
}
"""The keys of [images] that make each valid form of images of three channels."""


def settings_of(form: str, channels: int) -> dict[str, Any]:
    """Return the keys of [images] that give images of so many channels a valid form."""
    settings = dict(SETTINGS[form])
    for name in ("mean", "std"):
        if len(settings[name]) > channels:
            settings[name] = [round(float(np.mean(settings[name])), 3)]
    return settings


def over_255(form: Form) -> Form:
    """Return a form whose values were divided by 255 once more."""
    return form.then(ZERO, FULL, f"{form.name} over 255", f"({form.text}) / 255")


WRONG = {
    "pixels_not_scaled": (
        RAW.then(MEAN, STD, "raw minus mean over std", "0 to 255 minus 0.485, over 0.229"),
        RAW.then(HALF, HALF, "raw minus half", "0 to 255 minus 0.5, over 0.5"),
    ),
    "scaled_twice": (
        *map(over_255, (UNIT, SIGNED, NORMAL)),
        over_255(UNIT).then(MEAN, STD, "fine normal", "0 to 1/255, normalized"),
        over_255(UNIT).then(HALF, HALF, "fine signed", "-1 to -0.99"),
    ),
    "pixels_scaled": (over_255(MEAN_SUBTRACTED),),
    "normalized_twice": (
        NORMAL.then(MEAN, STD, "normal twice", "normalized twice"),
        SIGNED.then(HALF, HALF, "signed twice", "-3 to 1"),
        MEAN_SUBTRACTED.then(CAFFE_MEAN, ONE, "mean twice", "minus the mean twice"),
    ),
}
"""Forms that no model is trained on, by the fault that made them."""

FAULT_OF = {form.name: fault for fault, forms in WRONG.items() for form in forms}
KNOWN = (*VALID, *(form for forms in WRONG.values() for form in forms))


def forms_of(planes: Array) -> list[Form]:
    """Return the forms that values may be in, those first that use most of 0 to 255."""
    every = max(1, math.ceil(math.sqrt(planes.size / VALUES)))
    seen = planes[:, :, ::every, ::every].astype(np.float64)
    used = {form: _used(form.pixels(seen)) for form in KNOWN}
    fitting = [form for form in KNOWN if used[form] >= USED]
    return sorted(fitting, key=lambda form: -used[form])[:MOST_FORMS]


def changes(planes: Array) -> list[Change]:
    """Return the changes to another form that may be worth trying."""
    ways = [Change(had, target) for had in forms_of(planes) for target in VALID if target != had]
    return [way for way in ways if not way.is_slight]


def _used(pixels: Array) -> float:
    """Return how much of 0 to 255 pixels use, 0 if they leave it or have nothing dark."""
    lowest, low, high, highest = np.quantile(pixels, (0.001, 0.01, 0.99, 0.999))
    fits = lowest >= -TOLERANCE and highest <= 255 + TOLERANCE and low <= DARK
    return float(high - low) if fits else 0.0


def _across(values: tuple[float, ...], planes: Array) -> Array:
    """Return one value a channel, to be used on planes; their mean for one channel."""
    channels = values if planes.shape[1] == 3 else (float(np.mean(values)),)
    return np.array(channels).reshape(-1, 1, 1)
