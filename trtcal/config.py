"""`trtcal.toml`: its keys, their types and defaults, and the errors that name a wrong one.

The dataclasses are the schema: every field is a key, and `key` says which values it takes. What the
keys mean is in `config.toml`.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import math
import os
import re
import sys
import unicodedata
from collections.abc import Callable, Collection, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from trtcal.documents.bounds import INTEGERS, check_depth, check_file, in_time
from trtcal.documents.overview import Shown
from trtcal.errors import InputError
from trtcal.extensions import DEVICES, load
from trtcal.limits import Limit, parse_limits

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

FILE, PAGE = "trtcal.toml", "see docs/configuration.md"
MOST_BYTES = 1 << 20
TASKS = (
    *("classification", "multilabel", "detection", "segmentation", "regression", "embedding"),
    *("tokens", "language", "audio", "image", "none"),
)
IMAGES_EXAMPLE = (
    'images = { channels = "RGB", layout = "NCHW", resize = 256, crop = 224, scale = "1/255", '
    "mean = [0.485, 0.456, 0.406], std = [0.229, 0.224, 0.225] }"
)

Parameters = dict[str, int | float | str]
Tasks = str | Mapping[str, str] | None
"""The task of all outputs, or the task of each, None for guessed ones."""
T = TypeVar("T")
Section = TypeVar("Section", bound="DataclassInstance")


class WrongKeyError(InputError):
    """A key that is unknown, missing, or has a wrong value; `key` is relative to the table read.

    `example` is a right value of it, as TOML has it.
    """

    def __init__(self, problem: str, key: str = "", hint: str = PAGE, example: str = "") -> None:
        shown = f"for example: {key.rpartition('.')[2]} = {example}" if example and key else hint
        super().__init__(problem.format(repr(key)), shown)
        self.problem, self.key, self.advice, self.example = problem, key, hint, example

    def inside(self, table: str, example: str) -> WrongKeyError:
        """Return the error with the key seen from the table around `table`."""
        right = self.example if self.key else example or self.example
        return WrongKeyError(self.problem, f"{table}.{self.key}".strip("."), self.advice, right)


def _wrong(words: str, key: str = "", example: str = "") -> WrongKeyError:
    return WrongKeyError(f"{{}} must be {words}", key, example=example)


@dataclass(frozen=True)
class Kind:
    """The values of a key: in words, as a test of the TOML value, a conversion, and an example."""

    words: str
    fits: Callable[[Any], bool]
    becomes: Callable[[Any], Any] = lambda value: value
    example: str = ""

    def __call__(self, value: Any) -> Any:
        """Return the converted value; `WrongKeyError` if it does not fit."""
        if not self.fits(value):
            raise _wrong(self.words, example=self.example)
        return self.becomes(value)


def key(
    read: Callable[[Any], Any],
    default: Any = MISSING,
    *,
    example: str = "",
    name: str = "",
) -> Any:
    """Return a field whose TOML value `read` checks and converts; without a default it is required.

    `read` raises `WrongKeyError`. A default that can be called makes the value. `name` is the key where
    it is not the field's name, `example` a right value in TOML: without it the default, or the kind's.
    """
    if not example and isinstance(default, (bool, int, float, str, tuple)) and default:
        example = json.dumps(default)
    metadata = {"read": read, "name": name, "example": example}
    if callable(default):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value in INTEGERS


def is_finite(value: Any) -> bool:
    """Whether a TOML value is a finite number."""
    return _is_whole(value) or (isinstance(value, float) and math.isfinite(value))


def as_list(value: Any) -> list[Any]:
    """Return a list as it is, anything else as a list of it alone."""
    return value if isinstance(value, list) else [value]


def _are_sides(value: Any) -> bool:
    sides = as_list(value)
    return len(sides) in (1, 2) and all(_is_whole(side) and side >= 1 for side in sides)


def _are_numbers(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_are_numbers, value))
    return is_finite(value) or isinstance(value, bool)


def _factor(value: Any) -> Any:
    """Return a number for a fraction such as "1/255", anything else as it is."""
    parts = re.fullmatch(r"(\d+(?:\.\d+)?)/(\d+(?:\.\d+)?)", str(value).replace(" ", ""))
    is_fraction = parts and isinstance(value, str) and float(parts[2])
    return float(parts[1]) / float(parts[2]) if parts and is_fraction else value


TEXT = Kind("a string", lambda value: isinstance(value, str), example='"text"')
FILE_NAME = Kind(
    TEXT.words, lambda value: TEXT.fits(value) and "\0" not in value, Path, '"folder/file"'
)
COUNT = Kind(
    "a whole number from 1 to 1,000,000",
    lambda value: _is_whole(value) and 1 <= value <= 10**6,
    example="32",
)
NUMBER = Kind(
    "a number of at least 0", lambda value: is_finite(value) and value >= 0, float, example="1.5"
)
PRICE = Kind("a number above 0", lambda value: is_finite(value) and value > 0, float, example="2.5")
RATE = Kind(
    "a number above 0, at most 1e12",
    lambda value: is_finite(value) and 0 < value <= 1e12,
    float,
    example="2.5",
)
CURRENCY = Kind(
    "the three letters of a currency, like USD",
    lambda value: isinstance(value, str) and bool(re.fullmatch("[A-Z]{3}", value)),
    example='"USD"',
)
STRINGS = Kind(
    "a list of one or more strings",
    lambda value: isinstance(value, list) and value != [] and all(map(TEXT.fits, value)),
    lambda value: tuple(dict.fromkeys(value)),
    example='["one", "two"]',
)
NAMES = Kind(
    "a list of strings",
    lambda value: isinstance(value, (list, tuple)) and all(map(TEXT.fits, value)),
    lambda value: tuple(dict.fromkeys(value)),
    example='["one", "two"]',
)
LIMITS = Kind('a list of strings like "top1 >= -1.0"', NAMES.fits, example='["top1 >= -1.0"]')
FLAG = Kind("true or false", lambda value: isinstance(value, bool), example="true")
NUMBERS = Kind(
    "a number or a list of numbers",
    lambda value: value != [] and all(map(is_finite, as_list(value))),
    lambda value: tuple(map(float, as_list(value))),
    example="[0.485, 0.456, 0.406]",
)
FACTOR = Kind(
    'a number above 0, or a fraction like "1/255"',
    lambda value: PRICE.fits(_factor(value)),
    lambda value: float(_factor(value)),
    example='"1/255"',
)
SIDES = Kind(
    "one whole number above 0, or two: [height, width]",
    _are_sides,
    lambda value: tuple(value) if len(as_list(value)) == 2 else as_list(value)[0],
    example="[224, 224]",
)
PIXEL = Kind("a whole number from 0 to 255", lambda value: _is_whole(value) and value in range(256))
CROP = Kind(
    SIDES.words, _are_sides, lambda value: (as_list(value)[0], as_list(value)[-1]), example="224"
)
SCRIPTS = Kind(
    'a list of strings like "file.py" or "file.py:function"',
    lambda value: (
        isinstance(value, list) and all(FILE_NAME.fits(item) and script_in(item) for item in value)
    ),
    lambda value: tuple(map(Path, dict.fromkeys(value))),
    example='["passes.py"]',
)
TABLE = Kind("a table", lambda value: isinstance(value, dict))
TABLES = Kind(
    "a list of tables",
    lambda value: isinstance(value, (list, tuple)) and all(map(TABLE.fits, value)),
    tuple,
)
SCALAR = Kind(
    "a number or a string",
    lambda value: isinstance(value, (int, float, str)) and not isinstance(value, bool),
)
CONSTANT = Kind("a number, true or false, or lists of them", _are_numbers, example="[1.0, 2.0]")


def are_annotations(labels: object) -> bool:
    """Tell whether labels are in a file of COCO's annotations, not in `csv` or `folders`."""
    return isinstance(labels, (str, Path)) and str(labels).endswith(".json")


LABELLED_BY = Kind(
    "one of 'csv', 'folders', or a .json file of COCO annotations",
    lambda value: value in ("csv", "folders") or are_annotations(value),
    lambda value: Path(value) if are_annotations(value) else value,
)


def script_in(path: str | Path) -> tuple[Path, str] | None:
    """Return file and function ("" if none is named) of `file.py` or `file.py:function`, else None."""
    parts = re.fullmatch(r"(.*\.py)(?::(\w+))?", str(path), re.DOTALL)
    return (Path(parts[1]), parts[2] or "") if parts else None


def one_of(*allowed: str) -> Kind:
    """Return the kind of one of several strings."""
    words = f"one of {', '.join(map(repr, allowed))}"
    return Kind(words, lambda value: value in allowed, example=f'"{allowed[0]}"')


TASK = Kind(
    f"{one_of(*TASKS).words}, or a table that has one of them for each output",
    lambda value: value in TASKS or (TABLE.fits(value) and {*value.values()} <= {*TASKS}),
    example='"classification"',
)
EFFORTS = ("fast", "best")
IMPROVE = ("auto", *EFFORTS, "off")
"""When a run optimizes INT8: where INT8 falls short, always with an effort, or never."""


def by_name(read: Callable[[Any], T], value: object) -> dict[str, T]:
    """Read a table whose keys are free."""
    values = {}
    for name, item in TABLE(value).items():
        with _inside(name):
            values[name] = read(item)
    return values


MOST_TAGS, LONGEST_KEY, LONGEST_VALUE = 50, 128, 256  # as the large clouds bound theirs


def _is_label(value: Any, longest: int) -> bool:
    """Whether a value is text in which nothing is hidden: no control, format or lone characters."""
    return (
        isinstance(value, str)
        and 0 < len(value) <= longest
        and value.isprintable()
        and value == value.strip()
        and unicodedata.is_normalized("NFC", value)
    )


LABEL = Kind(
    f"1 to {LONGEST_VALUE} printable characters, without spaces around them",
    lambda value: _is_label(value, LONGEST_VALUE),
    example='"text"',
)


def read_tags(value: object) -> dict[str, str]:
    """Read tags: at most 50 keys of up to 128 characters, each with one value of up to 256.

    Keys and values are printable, in Unicode's composed form (NFC); a key has no `=`. Each key has one
    value that is no object and no list, as FOCUS wants of its column Tags.
    """
    table = TABLE(value)
    if len(table) > MOST_TAGS:
        raise _wrong(f"a table of at most {MOST_TAGS} tags")
    for name in table:
        if not _is_label(name, LONGEST_KEY) or "=" in name:
            words = f"called by 1 to {LONGEST_KEY} printable characters other than `=`"
            raise _wrong(words, str(name)[:LONGEST_KEY])
    return by_name(LABEL, table)


def _texts(value: object) -> dict[str, str]:
    return {name: str(scalar) for name, scalar in by_name(SCALAR, value).items()}


def _suppressions(value: Any) -> tuple[dict[str, str], ...]:
    """Read accepted findings: `kind`, `reason`, and maybe `subject`, all of them strings."""
    for table in TABLES(value):
        by_name(TEXT, table)
        for name in ("kind", "reason"):
            if not table.get(name):
                raise _wrong("given: every accepted finding needs a reason", name)
        for name in table.keys() - {"kind", "reason", "subject"}:
            raise WrongKeyError("unknown key {}", name, "known: kind, subject, reason")
    return tuple(value)


@contextlib.contextmanager
def _inside(name: str, example: str = "") -> Iterator[None]:
    """Add the name of a table to the key of an error that is raised while it is read."""
    try:
        yield
    except WrongKeyError as error:
        raise error.inside(name, example) from None


def read_section(kind: type[Section], value: object, example: str = IMAGES_EXAMPLE) -> Section:
    """Read a table as a dataclass whose fields were made by `key`; the example has what it needs."""
    items = {item.metadata["name"] or item.name: item for item in fields(kind) if item.metadata}
    values = {}
    for name, content in TABLE(value).items():
        if name not in items:
            close = difflib.get_close_matches(name, items, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(items)}"
            raise WrongKeyError("unknown key {}", name, hint)
        with _inside(name, items[name].metadata["example"]):
            values[items[name].name] = items[name].metadata["read"](content)
    for name, item in items.items():
        if item.name not in values and item.default is item.default_factory:  # both are MISSING
            raise WrongKeyError("{} is missing", name, f"for example: {example}")
    return kind(**values)


def read_sections(kind: type[Section], example: str, value: object) -> tuple[Section, ...]:
    """Read a list of tables, which count from 1 in errors, as dataclasses."""
    numbered = {str(number): table for number, table in enumerate(TABLES(value), 1)}
    return tuple(by_name(partial(read_section, kind, example=example), numbered).values())


def section(kind: type[Section]) -> Any:
    """Return a field that is a table of its own, whose keys all have defaults."""
    return key(partial(read_section, kind), kind)


@dataclass(frozen=True)
class ImagesConfig(Shown):
    """How image files become the model's input; nothing of it is guessed.

    In this order: `channels`, `resize` (the shorter side, or height and width), `crop` (height and
    width, from the center), then (pixel * scale - mean) / std. With `letterbox` the image keeps its
    aspect ratio within `resize`, and the rest has this pixel value. `mean` and `std` have one number,
    or one for each channel in the order of `channels`. `alpha` is the background of transparent
    pixels.

    >>> ImagesConfig("RGB", "NCHW", 1 / 255, resize=256, crop=(224, 224)).interpolation
    'bilinear'
    """

    channels: str = key(one_of("RGB", "BGR", "gray"))
    layout: str = key(one_of("NCHW", "NHWC"))
    scale: float = key(FACTOR)
    mean: tuple[float, ...] = key(NUMBERS, (0.0,))
    std: tuple[float, ...] = key(NUMBERS, (1.0,))
    resize: int | tuple[int, int] | None = key(SIDES, None)
    crop: tuple[int, int] | None = key(CROP, None)
    interpolation: str = key(
        one_of("nearest", "box", "bilinear", "hamming", "bicubic", "lanczos", "opencv-bilinear"),
        "bilinear",
    )
    alpha: str | None = key(one_of("black", "white", "drop"), None)
    letterbox: int | None = key(PIXEL, None)

    def __post_init__(self) -> None:
        count = 1 if self.channels == "gray" else 3
        for name in ("mean", "std"):
            if len(getattr(self, name)) not in (1, count):
                raise _wrong(f"a number or a list of {count}", name)
        if not all(value > 0 for value in self.std):
            raise _wrong("above 0", "std")
        if self.letterbox is not None and not isinstance(self.resize, tuple):
            raise _wrong("given with letterbox, as [height, width]", "resize", SIDES.example)


@dataclass(frozen=True)
class DataConfig(Shown):
    """Settings of all data of a model."""

    constants: dict[str, Any] = key(partial(by_name, CONSTANT), dict)
    states: dict[str, str] = key(partial(by_name, TEXT), dict)
    sample_axis: bool = key(FLAG, True)
    tokens: str | None = key(TEXT, None)
    steps: int | None = key(COUNT, None)


@dataclass(frozen=True)
class PrepareConfig(Shown):
    """Preparation passes to skip, those to add that run on request only, and scripts with others."""

    skip: tuple[str, ...] = key(STRINGS, ())
    add: tuple[str, ...] = key(STRINGS, ())
    passes: tuple[Path, ...] = key(SCRIPTS, ())


@dataclass(frozen=True)
class CalibrationConfig(Shown):
    """The data and methods to calibrate with."""

    data: Path | None = key(FILE_NAME, None)
    labels: str | Path | None = key(LABELLED_BY, None)
    methods: tuple[str, ...] = key(STRINGS, (), example='["minmax", "entropy"]')
    method: str = key(TEXT, "")
    batch: int = key(COUNT, 32)
    workers: int = key(COUNT, 1)
    improve: str = key(one_of(*IMPROVE), "auto")
    improve_time_limit_s: float = key(NUMBER, 600.0)
    mixed: str = key(one_of("auto", "on", "off"), "auto")
    parameters: dict[str, Parameters] = key(partial(by_name, partial(by_name, SCALAR)), dict)

    def __post_init__(self) -> None:
        if not self.methods:
            object.__setattr__(self, "methods", (self.method or "auto",))
        if not self.method:
            preferred = "percentile" if "percentile" in self.methods else self.methods[0]
            object.__setattr__(self, "method", preferred)


@dataclass(frozen=True)
class EvaluationConfig(Shown):
    """The data to compare on, and how."""

    data: Path | None = key(FILE_NAME, None)
    labels: str | Path | None = key(LABELLED_BY, None)
    batch: int = key(COUNT, 32)
    rounds: int | None = key(COUNT, None)
    slices: Path | None = key(FILE_NAME, None)
    metric: Path | None = key(FILE_NAME, None)
    layer_samples: int = key(COUNT, 64)
    stop_early: bool = key(FLAG, True)


@dataclass(frozen=True)
class PlanConfig(Shown):
    """A plan, as in a plan's JSON, the method whose ranges it takes, and whether to improve it."""

    layers: dict[str, str] = key(_texts, dict)
    default: str = key(TEXT, "int8")
    method: str | None = key(TEXT, None)
    rules: tuple[dict[str, Any], ...] = key(TABLES, ())
    second_qdq: tuple[str, ...] = key(STRINGS, ())
    rest: str | None = key(one_of("fp16", "fp32"), None)
    block_size: int = key(COUNT, 128)
    improve: str | None = key(one_of(*EFFORTS), None)


def _plans(value: object) -> dict[str, PlanConfig]:
    for name in TABLE(value):
        if not name.replace("-", "").replace("_", "").isalnum():
            raise _wrong("a name of letters, digits, - and _", name)
    return by_name(partial(read_section, PlanConfig), value)


@dataclass(frozen=True)
class BuildConfig(Shown):
    """Targets, shapes and the time limit of builds."""

    targets: tuple[str, ...] = key(STRINGS, (), example='["cpu", "sm89"]')
    shapes: dict[str, str] = key(_texts, dict)
    time_limit_s: float = key(NUMBER, 1800.0)
    fp16: bool = key(FLAG, True)
    rest: str | None = key(one_of("fp16", "fp32"), None)

    @property
    def run_targets(self) -> tuple[str, ...]:
        """The targets of a run."""
        return self.targets or ("cpu", "sm89")

    @property
    def compares_fp16(self) -> bool:
        """Whether FP16 is what INT8 stands beside."""
        return self.fp16 and _has_gpu(self.run_targets)

    def rest_for(self, targets: Collection[str]) -> str:
        """Return the precision of what stays in float."""
        return self.rest or ("fp16" if _has_gpu(targets) else "fp32")


def _has_gpu(targets: Collection[str]) -> bool:
    return any(hardware_of(target) != "cpu" for target in targets)


DEVICE_NAME = re.compile(r"(?!slices$)[A-Za-z0-9][A-Za-z0-9_-]{,31}", re.ASCII)
USER, PLACE = r"(?:[A-Za-z0-9_][\w.+-]*@)?", r"(?:[A-Za-z0-9_][\w.-]*|\[[0-9A-Fa-f:.]+\])"
ADDRESS = rf"{USER}{PLACE}|ssh://{USER}{PLACE}(?::\d{{1,5}})?/?|local:"
HOST = Kind(
    "a host such as user@host or ssh://user@host:port",
    lambda value: isinstance(value, str) and bool(re.fullmatch(ADDRESS, value, re.ASCII)),
    example='"user@orin.local"',
)
WORD = Kind(
    "printable characters without spaces, the first of them not `-`",
    lambda value: _is_label(value, LONGEST_VALUE) and not re.search(r"^-|\s", value),
    example='"/usr/bin/python3"',
)


@dataclass(frozen=True)
class DeviceConfig(Shown):
    """A machine that trtcal reaches by ssh, where it builds, runs and times engines."""

    host: str = key(HOST)
    python: str = key(WORD, "python3")
    container: str | None = key(WORD, None, example='"nvcr.io/nvidia/tensorrt:25.03-py3"')
    folder: str | None = key(WORD, None)


def is_device(target: str) -> bool:
    """Whether a target is a device, `@NAME`."""
    return target.startswith("@")


def read_devices(value: object) -> dict[str, DeviceConfig]:
    """Read devices by their names."""
    for name in TABLE(value):
        if not DEVICE_NAME.fullmatch(name):
            words = "a name of 1 to 32 letters, digits, - and _, without - or _ first, not `slices`"
            raise _wrong(words, name)
    return by_name(partial(read_section, DeviceConfig, example=f"host = {HOST.example}"), value)


_known_devices: ContextVar[Mapping[str, DeviceConfig]] = ContextVar("devices")


def configured_devices() -> Mapping[str, DeviceConfig]:
    """Return the devices of the configuration in use, by their names."""
    return _known_devices.get({})


def hardware_of(target: str) -> str:
    """Return the target that a device's hardware is, such as `sm87` or `cpu`, as it last said.

    A device of which nothing is known, and what is no device, is returned as it is.
    """
    if not is_device(target):
        return target
    return str(load(DEVICES, "ssh", "devices")(target).hardware_target)


def _limits(value: object) -> tuple[Limit, ...]:
    with explaining():
        return parse_limits(LIMITS(value))


@contextlib.contextmanager
def explaining() -> Iterator[None]:
    """Make an error that is raised while a value is read one about its key."""
    try:
        yield
    except WrongKeyError:
        raise
    except InputError as error:
        message = error.message.replace("{", "{{").replace("}", "}}")
        raise WrongKeyError(f"{{}}: {message}", hint=error.hint or "") from None


@dataclass(frozen=True)
class ReportConfig(Shown):
    """What a report shows: the price of the machine that measures latency, and whether names stay."""

    price_per_hour: float | None = key(RATE, None)
    currency: str = key(CURRENCY, "USD")
    redact: bool = key(FLAG, False)


PRICINGS = ("on-demand", "spot", "reserved")


@dataclass(frozen=True)
class CostConfig(Shown):
    """Who a run is for, and what serves the model: for costs by tag and over time."""

    tags: dict[str, str] = key(read_tags, dict)
    inferences_per_month: float | None = key(RATE, None)
    instance: str | None = key(LABEL, None)
    region: str | None = key(LABEL, None)
    pricing: str = key(one_of(*PRICINGS), "on-demand")
    prices: Path | None = key(FILE_NAME, None)

    def to_document(self) -> dict[str, Any]:
        """Return the record of it in a run: nothing where nothing is set."""
        recorded = {name: value for name, value in vars(self).items() if name != "prices"}
        return recorded if replace(self, prices=None) != CostConfig() else {}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> CostConfig:
        """Return the record under `cost` of a run or a report; `InputError` if it is none."""
        with _inside("cost"):
            table = TABLE(document.get("cost") or {})
            return read_section(cls, {name: v for name, v in table.items() if v is not None})


RERUN, ALERT = "rerun", "alert"
ACTIONS = Kind(
    f'a list of "{RERUN}" and "{ALERT}"',
    lambda value: isinstance(value, list) and {*map(str, value)} <= {RERUN, ALERT},
    lambda value: tuple(dict.fromkeys(value)),
    example=f'["{RERUN}", "{ALERT}"]',
)


@dataclass(frozen=True)
class CheckpointConfig(Shown):
    """What `trtcal trace verify` does about a delta: run again what made it, raise the alert."""

    on_delta: tuple[str, ...] = key(ACTIONS, (RERUN, ALERT), example=ACTIONS.example)


@dataclass(frozen=True)
class StoreConfig(Shown):
    """Where `trtcal store` keeps runs: a folder, or s3://bucket/prefix."""

    url: str | None = key(TEXT, None, example='"s3://bucket/prefix"')


@dataclass(frozen=True)
class Config(Shown):
    """All of `trtcal.toml`, with paths absolute from the file's folder.

    `task` is what the model is for, `outputs` are the outputs to judge; both are guessed if not
    given. `project` is the name of its runs in the history. `untrusted` are the scripts that only
    the file asks for.

    >>> from pathlib import Path
    >>> config = Config(Path("trtcal.toml"), model=Path("model.onnx"))
    >>> config.calibration.method, config.build.run_targets
    ('auto', ('cpu', 'sm89'))
    """

    path: Path = Path(FILE)
    untrusted: tuple[Path, ...] = ()
    model: Path | None = key(FILE_NAME, None)
    output: Path | None = key(FILE_NAME, None)
    history: Path | None = key(FILE_NAME, None)
    project: str | None = key(TEXT, None)
    task: Tasks = key(TASK, None, example='{ weather = "classification", ground = "segmentation" }')
    outputs: tuple[str, ...] = key(STRINGS, ())
    prepare: PrepareConfig = section(PrepareConfig)
    images: ImagesConfig | None = key(partial(read_section, ImagesConfig), None)
    data: DataConfig = section(DataConfig)
    calibration: CalibrationConfig = section(CalibrationConfig)
    evaluation: EvaluationConfig = section(EvaluationConfig)
    plans: dict[str, PlanConfig] = key(_plans, dict)
    build: BuildConfig = section(BuildConfig)
    limits: tuple[Limit, ...] = key(_limits, ())
    suppress: tuple[dict[str, str], ...] = key(_suppressions, ())
    report: ReportConfig = section(ReportConfig)
    cost: CostConfig = section(CostConfig)
    checkpoint: CheckpointConfig = section(CheckpointConfig)
    store: StoreConfig = section(StoreConfig)
    devices: dict[str, DeviceConfig] = key(read_devices, dict)

    def in_use(self) -> Config:
        """Return it, after its devices have become known as targets."""
        _known_devices.set(self.devices)
        return self

    @property
    def finds_mixed(self) -> bool:
        """Whether a run looks for layers that must stay in float."""
        how = self.calibration.mixed
        return how == "on" or (how == "auto" and not self.plans)

    @property
    def efforts(self) -> list[tuple[str, str]]:
        """The effort of post-training optimization for INT8 throughout (`int8`) and for plans."""
        plans = ((name, plan.improve) for name, plan in self.plans.items())
        efforts = (("int8", self.calibration.improve), *plans)
        return [(name, effort) for name, effort in efforts if effort in EFFORTS]

    @property
    def run_folder(self) -> Path:
        """Where `trtcal run` writes: `output`, or `reports/` beside the file."""
        return self.output or self.path.parent / "reports"

    @property
    def scripts(self) -> dict[str, Path]:
        """The values that are scripts, by their keys; a function may stand behind the file."""
        paths = {"calibration.data": self.calibration.data, "evaluation.data": self.evaluation.data}
        scripts = {key: path for key, path in paths.items() if path and script_in(path)}
        for number, path in enumerate(self.prepare.passes, 1):
            scripts[f"prepare.passes.{number}"] = path
        metric = self.evaluation.metric
        return {**scripts, "evaluation.metric": metric} if metric else scripts

    def trusting(self, everything: bool, *named: Path | None) -> Config:
        """Return the configuration with its scripts trusted: all, or those that the user named."""
        trusted = {Path(os.path.abspath(path)) for path in named if path is not None}
        left = () if everything else (path for path in self.untrusted if path not in trusted)
        return replace(self, untrusted=tuple(left))

    def check_trusted(self, script: Path | None) -> None:
        """`InputError` if this is a script that only the file asks for; call it before it is run."""
        if script in self.untrusted:
            key = next(key for key, path in self.scripts.items() if path == script)
            raise InputError(
                f"{self.path} asks to run the script {script} (`{key}`), which is a program",
                "name the script on the command line, or give --trust if you trust its author",
            )


def read_config(path: Path) -> Config:
    """Read `trtcal.toml`; `InputError` names the key that is unknown or has the wrong type."""
    hint = (
        'write lines like method = "percentile"; `trtcal init MODEL.onnx --data DATA` writes a file'
    )
    return config_of_table(read_toml(path, hint), path, path.read_text(encoding="utf-8"))


def parse_config(text: str, path: Path) -> Config:
    """Read the text of a `trtcal.toml` that is, or would be, at this path."""
    return config_of_table(tomllib.loads(text), path, text)


def config_of_table(table: dict[str, Any], path: Path, text: str = "") -> Config:
    """Return the configuration that a table describes, with paths from the folder of `path` on.

    Errors name the line of `text` that they are about.
    """
    with naming(path):
        try:
            config = _absolute(replace(read_section(Config, table), path=path), path.parent)
            return replace(config, untrusted=tuple(config.scripts.values()))
        except WrongKeyError as error:
            raise InputError(f"{error.message}{_line_of(text, error.key)}", error.hint) from None


NAME = re.compile(r"""\s*(?:"([^"]*)"|'([^']*)'|([\w-]+))\s*""")


def _line_of(text: str, key: str) -> str:
    """Return number and text of the line that has a key, or the table of one that is missing."""
    full_name = re.sub(r"[.][0-9]+[.]", ".", f"{key}.")
    longest, place, table = 0, "", ""
    for number, line in enumerate(map(str.strip, text.splitlines()), 1):
        if line.startswith("["):
            here = table = _dotted(line.strip("[").partition("]")[0])
        elif "=" in line:
            here = table + _dotted(line.partition("=")[0])
        else:
            continue
        if longest < len(here) and full_name.startswith(here):
            longest, place = len(here), f" (line {number}: {line})"
    return place


def _dotted(names: str) -> str:
    """Return the names of a key or a table, each with a point behind it."""
    return "".join("".join(parts) + "." for parts in NAME.findall(names))


def read_toml(path: Path, hint: str = "correct its TOML syntax") -> dict[str, Any]:
    """Read a TOML file of at most a MiB; `InputError` with the hint if there is none."""
    try:
        size = check_file(path, MOST_BYTES, hint)
        with in_time(path, size):
            table = tomllib.loads(path.read_text(encoding="utf-8"))
        check_depth(table)
        return table
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(
            f"{path} cannot be read: {error}{_quoted(path, str(error))}", hint
        ) from error


def _quoted(path: Path, problem: str) -> str:
    """Return the line that a problem of TOML's reader is about, "" if it names none."""
    if (number := re.search(r"at (?:line (\d+)|end of document)", problem)) is None:
        return ""
    lines = path.read_text(encoding="utf-8", errors="replace").rstrip().splitlines()
    line = int(number[1] or len(lines))
    return f": {lines[line - 1].strip()}" if 0 < line <= len(lines) else ""


@contextlib.contextmanager
def naming(place: object) -> Iterator[None]:
    """Name the file, or the place in it, in an error that is raised while it is read."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{place}: {error.message}", error.hint) from None


def _absolute(settings: Section, base: Path) -> Section:
    """Return settings with all paths, those of tables in them too, taken from `base` on."""
    changes: dict[str, Any] = {}
    for item in fields(settings):
        value = getattr(settings, item.name)
        if is_dataclass(value) and not isinstance(value, type):
            changes[item.name] = _absolute(value, base)
        elif isinstance(value, Path) and item.metadata:
            changes[item.name] = Path(os.path.abspath(base / value))
        elif isinstance(value, tuple) and any(isinstance(path, Path) for path in value):
            changes[item.name] = tuple(Path(os.path.abspath(base / path)) for path in value)
    return replace(settings, **changes)
