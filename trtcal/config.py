"""`trtcal.toml`: what to calibrate, compare and build, and which limits must hold."""

from __future__ import annotations

import difflib
import math
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, cast

from trtcal.errors import InputError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILE = "trtcal.toml"
METHODS = ("minmax", "percentile", "entropy")
CHANNELS = ("RGB", "BGR", "gray")
LAYOUTS = ("NCHW", "NHWC")
INTERPOLATIONS = ("nearest", "box", "bilinear", "hamming", "bicubic", "lanczos")
ALPHAS = ("black", "white", "drop")
TABLES = (
    "model",
    "output",
    "history",
    "prepare",
    "images",
    "calibration",
    "evaluation",
    "plans",
    "build",
    "gates",
    "suppress",
    "report",
)
CALIBRATION = (
    "data",
    "labels",
    "methods",
    "method",
    "batch",
    "workers",
    "improve",
    "improve_time_limit_s",
    "parameters",
)
EFFORTS = ("fast", "best")
LABEL_SOURCES = ("csv", "folders")
IMAGES_EXAMPLE = (
    'images = { channels = "RGB", layout = "NCHW", resize = 256, crop = 224, scale = "1/255", '
    "mean = [0.485, 0.456, 0.406], std = [0.229, 0.224, 0.225] }"
)

Parameters = dict[str, int | float | str]


@dataclass(frozen=True)
class ImagesConfig:
    """How image files become what the model takes; nothing of it is guessed.

    In this order: `channels`, `resize` (the shorter side, or height and width), `crop` (height and
    width, out of the middle), then (pixel * scale - mean) / std. `mean` and `std` have one number,
    or one a channel in the order of `channels`. `alpha` is what lies behind transparent pixels.
    """

    channels: str
    layout: str
    scale: float
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    resize: int | tuple[int, int] | None = None
    crop: tuple[int, int] | None = None
    interpolation: str = "bilinear"
    alpha: str | None = None


@dataclass(frozen=True)
class PrepareConfig:
    """Preparation passes to skip, and those to add that run on request only; see `trtcal.passes`."""

    skip: tuple[str, ...] = ()
    add: tuple[str, ...] = ()


@dataclass(frozen=True)
class CalibrationConfig:
    """The data and methods to calibrate with; `method` is the one used where one is wanted.

    `workers` is the number of processes that observe, which share the cores out.
    `labels` says where the labels of an image folder stand: "csv" or "folders". `improve` says how
    much is tried to optimization the INT8 model ("fast", "best"), None for nothing, and for how long.
    """

    data: Path | None = None
    labels: str | None = None
    methods: tuple[str, ...] = METHODS
    method: str = "percentile"
    batch: int = 32
    workers: int = 1
    improve: str | None = None
    improve_time_limit_s: float = 600.0
    parameters: dict[str, Parameters] = field(default_factory=dict)


@dataclass(frozen=True)
class EvaluationConfig:
    """The data to compare on, the batch size, and how many rounds of latency to measure.

    `labels` says where the labels of an image folder stand: "csv" or "folders". `slices` is a CSV file
    of attributes, `metric` a Python file with figures of one's own, `layer_samples` on how many samples
    the error is followed from tensor to tensor.
    """

    data: Path | None = None
    labels: str | None = None
    batch: int = 32
    rounds: int = 60
    slices: Path | None = None
    metric: Path | None = None
    layer_samples: int = 64


@dataclass(frozen=True)
class PlanConfig:
    """A mixed plan: precisions by layer and rule, and the method whose ranges INT8 layers take.

    `rules` are tables as in a plan's JSON, `apart` is the list of names in it.
    """

    layers: dict[str, str]
    default: str = "int8"
    method: str | None = None
    rules: tuple[dict[str, Any], ...] = ()
    apart: tuple[str, ...] = ()


@dataclass(frozen=True)
class BuildConfig:
    """What to build for, the shapes of dynamic inputs, and a time limit for each build.

    `tune_placement` is a target on whose compiler light nodes are tried, or None.
    """

    targets: tuple[str, ...] = ("cpu", "sm89")
    shapes: dict[str, str] = field(default_factory=dict)
    time_limit_s: float = 1800.0
    tune_placement: str | None = None


@dataclass(frozen=True)
class GatesConfig:
    """Limits that a candidate must hold (`trtcal.compare.Gates`), and a build (`trtcal.diagnosis`)."""

    max_top1_drop: float = 1.0
    min_speedup: float | None = None
    max_uncalibrated: int | None = None
    max_silent_fallbacks: int | None = None
    forbid: tuple[str, ...] = ()


@dataclass(frozen=True)
class ReportConfig:
    """What an hour of the machine where latency is measured costs, for the cost of inferences."""

    price_per_hour: float | None = None
    currency: str = "USD"


@dataclass(frozen=True)
class Config:
    """All of `trtcal.toml`, paths made absolute from the file's folder."""

    path: Path
    model: Path | None = None
    output: Path | None = None
    history: Path | None = None
    prepare: PrepareConfig = field(default_factory=PrepareConfig)
    images: ImagesConfig | None = None
    calibration: CalibrationConfig = field(default_factory=CalibrationConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    plans: dict[str, PlanConfig] = field(default_factory=dict)
    build: BuildConfig = field(default_factory=BuildConfig)
    gates: GatesConfig = field(default_factory=GatesConfig)
    suppress: tuple[dict[str, str], ...] = ()
    report: ReportConfig = field(default_factory=ReportConfig)

    @property
    def run_folder(self) -> Path:
        """Where `trtcal run` writes: `output`, or `reports/` beside the file."""
        return self.output or self.path.parent / "reports"


def read_config(path: Path) -> Config:
    """Read `trtcal.toml`; `InputError` names the key that is unknown or has the wrong type."""
    try:
        with path.open("rb") as file:
            table = tomllib.load(file)
    except FileNotFoundError:
        raise InputError(
            f"{path} does not exist", "write one: see samples/digits/trtcal.toml"
        ) from None
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {error}", "it must be TOML") from error
    return _Reader(path).config(table)


class _Reader:
    """Turns tables into dataclasses and says where one does not fit."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def config(self, table: Mapping[str, Any]) -> Config:
        self.known("", table, TABLES)
        return Config(
            path=self.path,
            model=self.file("", table, "model"),
            output=self.file("", table, "output"),
            history=self.file("", table, "history"),
            prepare=self.prepare(self.table("", table, "prepare")),
            images=self.images(self.table("", table, "images")) if "images" in table else None,
            calibration=self.calibration(self.table("", table, "calibration")),
            evaluation=self.evaluation(self.table("", table, "evaluation")),
            plans=self.plans(self.table("", table, "plans")),
            build=self.build(self.table("", table, "build")),
            gates=self.gates(self.table("", table, "gates")),
            suppress=tuple(map(self.suppression, self.get("", table, "suppress", list, []))),
            report=self.report(self.table("", table, "report")),
        )

    def suppression(self, table: Any) -> dict[str, str]:
        """Read an accepted finding: `kind`, `reason`, and maybe `subject`, all of them text."""
        here = "suppress"
        if not isinstance(table, dict):
            raise self.wrong(here, "written as [[suppress]]")
        self.known(here, table, ("kind", "subject", "reason"))
        for key in ("kind", "reason"):
            if not self.get(here, table, key, str, ""):
                raise self.wrong(_dotted(here, key), "given: an accepted finding needs its reason")
        return {key: self.get(here, table, key, str, "") for key in table}

    def prepare(self, table: Mapping[str, Any]) -> PrepareConfig:
        here = "prepare"
        self.known(here, table, ("skip", "add"))
        given = {key: self.strings(here, table, key, ()) for key in table}
        return PrepareConfig(**given)

    def calibration(self, table: Mapping[str, Any]) -> CalibrationConfig:
        here, default = "calibration", CalibrationConfig()
        self.known(here, table, CALIBRATION)
        methods = self.strings(here, table, "methods", default.methods)
        parameters = self.table(here, table, "parameters")
        return CalibrationConfig(
            data=self.file(here, table, "data"),
            labels=self.choice(here, table, "labels", LABEL_SOURCES),
            methods=methods,
            method=self.get(here, table, "method", str, _preferred(methods)),
            batch=self.positive(here, table, "batch", default.batch),
            workers=self.positive(here, table, "workers", default.workers),
            improve=self.choice(here, table, "improve", EFFORTS),
            improve_time_limit_s=self.number(
                here, table, "improve_time_limit_s", default.improve_time_limit_s
            )
            or 0.0,
            parameters={name: self.scalars(here, parameters, name) for name in parameters},
        )

    def evaluation(self, table: Mapping[str, Any]) -> EvaluationConfig:
        here, default = "evaluation", EvaluationConfig()
        self.known(here, table, tuple(item.name for item in fields(EvaluationConfig)))
        return EvaluationConfig(
            data=self.file(here, table, "data"),
            labels=self.choice(here, table, "labels", LABEL_SOURCES),
            batch=self.positive(here, table, "batch", default.batch),
            rounds=self.positive(here, table, "rounds", default.rounds),
            slices=self.file(here, table, "slices"),
            metric=self.file(here, table, "metric"),
            layer_samples=self.positive(here, table, "layer_samples", default.layer_samples),
        )

    def images(self, table: Mapping[str, Any]) -> ImagesConfig:
        here = "images"
        self.known(here, table, tuple(item.name for item in fields(ImagesConfig)))
        channels = self.needed(here, "channels", self.choice(here, table, "channels", CHANNELS))
        count = 1 if channels == "gray" else 3
        std = self.numbers(here, table, "std", count, 1.0)
        if not all(value > 0 for value in std):
            raise self.wrong("images.std", "above 0")
        resize, crop = (self.sides(here, table, key) for key in ("resize", "crop"))
        return ImagesConfig(
            channels=channels,
            layout=self.needed(here, "layout", self.choice(here, table, "layout", LAYOUTS)),
            scale=self.needed(here, "scale", self.factor(here, table, "scale")),
            mean=self.numbers(here, table, "mean", count, 0.0),
            std=std,
            resize=resize,
            crop=(crop, crop) if isinstance(crop, int) else crop,
            interpolation=self.choice(here, table, "interpolation", INTERPOLATIONS) or "bilinear",
            alpha=self.choice(here, table, "alpha", ALPHAS),
        )

    def plans(self, table: Mapping[str, Any]) -> dict[str, PlanConfig]:
        return {name: self.plan(name, self.table("plans", table, name)) for name in table}

    def plan(self, name: str, table: Mapping[str, Any]) -> PlanConfig:
        here = f"plans.{name}"
        if not name.replace("-", "").replace("_", "").isalnum():
            raise self.wrong(here, "a name of letters, digits, - and _")
        self.known(here, table, ("layers", "default", "method", "rules", "apart"))
        layers = self.scalars(here, table, "layers") if "layers" in table else {}
        return PlanConfig(
            layers={key: str(value) for key, value in layers.items()},
            default=self.get(here, table, "default", str, "int8"),
            method=self.get(here, table, "method", str, None),
            rules=tuple(self.get(here, table, "rules", list, [])),
            apart=self.strings(here, table, "apart", ()) if "apart" in table else (),
        )

    def build(self, table: Mapping[str, Any]) -> BuildConfig:
        here, default = "build", BuildConfig()
        self.known(here, table, ("targets", "shapes", "time_limit_s", "tune_placement"))
        shapes = self.scalars(here, table, "shapes") if "shapes" in table else {}
        return BuildConfig(
            targets=self.strings(here, table, "targets", default.targets),
            shapes={key: str(value) for key, value in shapes.items()},
            time_limit_s=self.number(here, table, "time_limit_s", default.time_limit_s) or 0.0,
            tune_placement=self.get(here, table, "tune_placement", str, None),
        )

    def gates(self, table: Mapping[str, Any]) -> GatesConfig:
        here, default = "gates", GatesConfig()
        self.known(here, table, tuple(item.name for item in fields(GatesConfig)))
        drop = self.number(here, table, "max_top1_drop", default.max_top1_drop)
        return GatesConfig(
            max_top1_drop=default.max_top1_drop if drop is None else drop,
            min_speedup=self.number(here, table, "min_speedup", default.min_speedup),
            max_uncalibrated=self.count(here, table, "max_uncalibrated"),
            max_silent_fallbacks=self.count(here, table, "max_silent_fallbacks"),
            forbid=self.strings(here, table, "forbid", ()) if "forbid" in table else (),
        )

    def report(self, table: Mapping[str, Any]) -> ReportConfig:
        here, default = "report", ReportConfig()
        self.known(here, table, tuple(item.name for item in fields(ReportConfig)))
        price = self.number(here, table, "price_per_hour", None)
        if price == 0:
            raise self.wrong("report.price_per_hour", "above 0")
        currency: str = self.get(here, table, "currency", str, default.currency)
        if not re.fullmatch("[A-Z]{3}", currency):
            raise self.wrong("report.currency", "the three letters of a currency, like USD")
        return ReportConfig(price, currency)

    def count(self, here: str, table: Mapping[str, Any], key: str) -> int | None:
        value: int | None = self.get(here, table, key, int, None)
        if value is not None and (isinstance(value, bool) or value < 0):
            raise self.wrong(_dotted(here, key), "a whole number from 0 up")
        return value

    def known(self, here: str, table: Mapping[str, Any], allowed: tuple[str, ...]) -> None:
        for key in table:
            if key not in allowed:
                close = difflib.get_close_matches(key, allowed, n=1)
                hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(allowed)}"
                raise InputError(f"{self.path}: unknown key {_dotted(here, key)!r}", hint)

    def get(self, here: str, table: Mapping[str, Any], key: str, kind: type, default: Any) -> Any:
        value = table.get(key, default)
        if value is not default and not isinstance(value, kind):
            raise self.wrong(_dotted(here, key), f"of type {kind.__name__}")
        return value

    def table(self, here: str, table: Mapping[str, Any], key: str) -> dict[str, Any]:
        found: dict[str, Any] = self.get(here, table, key, dict, {})
        return found

    def file(self, here: str, table: Mapping[str, Any], key: str) -> Path | None:
        name = self.get(here, table, key, str, None)
        return None if name is None else Path(os.path.abspath(self.path.parent / name))

    def strings(
        self, here: str, table: Mapping[str, Any], key: str, default: tuple[str, ...]
    ) -> tuple[str, ...]:
        values = self.get(here, table, key, list, list(default))
        if not values or not all(isinstance(value, str) for value in values):
            raise self.wrong(_dotted(here, key), "a list of one or more strings")
        return tuple(dict.fromkeys(values))

    def scalars(self, here: str, table: Mapping[str, Any], key: str) -> Parameters:
        found = self.table(here, table, key)
        for name, value in found.items():
            if not isinstance(value, (int, float, str)) or isinstance(value, bool):
                raise self.wrong(_dotted(_dotted(here, key), name), "a number or a string")
        return found

    def positive(self, here: str, table: Mapping[str, Any], key: str, default: int) -> int:
        value: int = self.get(here, table, key, int, default)
        if isinstance(value, bool) or value < 1:
            raise self.wrong(_dotted(here, key), "a whole number from 1 up")
        return value

    def number(
        self, here: str, table: Mapping[str, Any], key: str, default: float | None
    ) -> float | None:
        value = table.get(key, default)
        if value is None:
            return None
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not (number and 0 <= value < float("inf")):
            raise self.wrong(_dotted(here, key), "a number from 0 up")
        return float(value)

    def choice(
        self, here: str, table: Mapping[str, Any], key: str, allowed: tuple[str, ...]
    ) -> str | None:
        value: str | None = self.get(here, table, key, str, None)
        if value is not None and value not in allowed:
            raise self.wrong(_dotted(here, key), f"one of {', '.join(map(repr, allowed))}")
        return value

    def needed(self, here: str, key: str, value: Any) -> Any:
        if value is None:
            raise InputError(
                f"{self.path}: {_dotted(here, key)!r} is missing", f"for example: {IMAGES_EXAMPLE}"
            )
        return value

    def numbers(
        self, here: str, table: Mapping[str, Any], key: str, count: int, default: float
    ) -> tuple[float, ...]:
        value = table.get(key, default)
        values = value if isinstance(value, list) else [value]
        if len(values) not in (1, count) or not all(map(_is_finite, values)):
            raise self.wrong(_dotted(here, key), f"a number or a list of {count}")
        return tuple(map(float, values))

    def factor(self, here: str, table: Mapping[str, Any], key: str) -> float | None:
        value = table.get(key)
        parts = re.fullmatch(r"(\d+(?:\.\d+)?)/(\d+(?:\.\d+)?)", str(value).replace(" ", ""))
        if parts and isinstance(value, str) and float(parts[2]):
            value = float(parts[1]) / float(parts[2])
        if value is not None and not (_is_finite(value) and value > 0):
            raise self.wrong(_dotted(here, key), 'a number above 0, or a fraction like "1/255"')
        return None if value is None else float(value)

    def sides(self, here: str, table: Mapping[str, Any], key: str) -> int | tuple[int, int] | None:
        if key not in table:
            return None
        value: Any = table[key]
        sides = value if isinstance(value, list) else [value]
        whole = all(isinstance(side, int) and not isinstance(side, bool) for side in sides)
        if not whole or len(sides) not in (1, 2) or min(sides) < 1:
            raise self.wrong(_dotted(here, key), "whole numbers from 1 up: one, or [height, width]")
        return (sides[0], sides[1]) if len(sides) == 2 else int(sides[0])

    def wrong(self, name: str, wanted: str) -> InputError:
        return InputError(f"{self.path}: {name!r} must be {wanted}", "see the README's example")


def _dotted(here: str, key: str) -> str:
    return f"{here}.{key}" if here else key


def _is_finite(value: object) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and math.isfinite(cast(float, value))


def _preferred(methods: tuple[str, ...]) -> str:
    return "percentile" if "percentile" in methods else methods[0]
