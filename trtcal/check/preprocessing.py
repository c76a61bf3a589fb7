"""Forms in which pixels reach networks, right and spoiled ones, and the ways between them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trtcal.data.dataset import Array

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet, in units of 255
CAFFE_MEAN = (104.0, 117.0, 123.0)

TOLERANCE = 6.0  # pixel values by which a form may miss 0 and 255: filters overshoot
SPREAD, DARK = 80.0, 70.0  # what images have of 0 to 255, at least, and where their dark ends
SAME_SCALE, SAME_ZERO = 1.4, 0.2  # closer forms are no fault that could be told
SCALED = 20.0  # times the contrast, where pixels were divided or were not
MOST = 2  # forms that data are taken for


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
        scale, offset = (_across(one, planes) for one in (self.scale, self.offset))
        return (planes - offset) / scale


@dataclass(frozen=True)
class Change:
    """A way from the form that data seem to have to one that the model may want."""

    had: Form
    wanted: Form

    def __call__(self, planes: Array) -> Array:
        """Return the values in the form wanted, of the same dtype."""
        pixels = self.had.pixels(planes.astype(np.float64))
        scale, offset = (_across(one, planes) for one in (self.wanted.scale, self.wanted.offset))
        return (pixels * scale + offset).astype(planes.dtype)

    @property
    def gain(self) -> float:
        """How much larger differences of values become."""
        return float(np.mean(self.wanted.scale) / np.mean(self.had.scale))

    @property
    def is_slight(self) -> bool:
        """Whether both forms are nearly the same."""
        apart = abs(self.had.zero - self.wanted.zero) / 255
        return 1 / SAME_SCALE < self.gain < SAME_SCALE and apart < SAME_ZERO

    @property
    def is_mild(self) -> bool:
        """Whether the model may well see something without it."""
        return 1 / SCALED < self.gain < SCALED and not self.is_from_odd

    @property
    def is_from_odd(self) -> bool:
        """Whether no model is trained on the form that data have (some are: (pixel - mean) / 255)."""
        return self.had.name in SPOILED and self.had.name != "centred over 255"

    @property
    def code(self) -> str:
        """The fault that this way mends."""
        if self.had.name in SPOILED:
            return SPOILED[self.had.name]
        if self.gain < 1 / SCALED:
            return "pixels_not_scaled"
        if self.gain > SCALED:
            return "pixels_scaled"
        plain = self.had.name in ("unit", "raw")
        return "not_normalized" if plain else "other_normalization"


def _three(value: float) -> tuple[float, ...]:
    return (value,) * 3


RAW = Form("raw", _three(1.0), _three(0.0), "0 to 255")
UNIT = RAW.then(_three(0.0), _three(255.0), "unit", "0 to 1")
SIGNED = UNIT.then(_three(0.5), _three(0.5), "signed", "-1 to 1")
NORMAL = UNIT.then(MEAN, STD, "normal", "0 to 1 minus ImageNet's mean, over its std")
CENTRED = RAW.then(CAFFE_MEAN, _three(1.0), "centred", "0 to 255 minus (104, 117, 123)")
RIGHT = (RAW, UNIT, SIGNED, NORMAL, CENTRED)

TWICE_SCALED = "scaled_twice"
NOT_SCALED = "pixels_not_scaled"
TWICE_NORMAL = "normalized_twice"
_SPOILED = (
    (
        RAW.then(MEAN, STD, "raw minus mean over std", "0 to 255 minus 0.485, over 0.229"),
        NOT_SCALED,
    ),
    (
        RAW.then(_three(0.5), _three(0.5), "raw minus half", "0 to 255 minus 0.5, over 0.5"),
        NOT_SCALED,
    ),
    *(
        (
            form.then(_three(0.0), _three(255.0), f"{form.name} over 255", f"({form.text}) / 255"),
            code,
        )
        for form, code in (
            (UNIT, TWICE_SCALED),
            (SIGNED, TWICE_SCALED),
            (NORMAL, TWICE_SCALED),
            (CENTRED, "pixels_scaled"),
        )
    ),
    (
        UNIT.then(_three(0.0), _three(255.0), "", "").then(
            MEAN, STD, "fine normal", "0 to 1/255, normalized"
        ),
        TWICE_SCALED,
    ),
    (
        UNIT.then(_three(0.0), _three(255.0), "", "").then(
            _three(0.5), _three(0.5), "fine signed", "-1 to -0.99"
        ),
        TWICE_SCALED,
    ),
    (NORMAL.then(MEAN, STD, "normal twice", "normalized twice"), TWICE_NORMAL),
    (SIGNED.then(_three(0.5), _three(0.5), "signed twice", "-3 to 1"), TWICE_NORMAL),
    (CENTRED.then(CAFFE_MEAN, _three(1.0), "centred twice", "minus the mean twice"), TWICE_NORMAL),
)
SPOILED = {form.name: code for form, code in _SPOILED}
KNOWN = (*RIGHT, *(form for form, _ in _SPOILED))


def forms_of(planes: Array) -> list[Form]:
    """Return the forms that values may be in, those first that use most of 0 to 255."""
    found = [(_spread(form.pixels(planes.astype(np.float64))), form) for form in KNOWN]
    fitting = [(spread, form) for spread, form in found if spread >= SPREAD]
    return [form for _, form in sorted(fitting, key=lambda one: -one[0])[:MOST]]


def changes(planes: Array) -> list[Change]:
    """Return the ways to another form that may be worth trying."""
    ways = [Change(had, wanted) for had in forms_of(planes) for wanted in RIGHT if wanted != had]
    return [way for way in ways if not way.is_slight]


def _spread(pixels: Array) -> float:
    """Return how much of 0 to 255 pixels use, 0 if they leave it or have nothing dark."""
    lowest, low, high, highest = np.quantile(pixels, (0.001, 0.01, 0.99, 0.999))
    fits = lowest >= -TOLERANCE and highest <= 255 + TOLERANCE and low <= DARK
    return float(high - low) if fits else 0.0


def _across(values: tuple[float, ...], planes: Array) -> Array:
    """Return one value a channel, to be used on planes; their mean for one channel."""
    channels = values if planes.shape[1] == 3 else (float(np.mean(values)),)
    return np.array(channels).reshape(-1, 1, 1)
