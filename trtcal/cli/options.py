"""Commands as frozen dataclasses: the docstring is the help, the fields are the parameters.

    class Compare(DataOptions, example="trtcal compare model.onnx int8.onnx --data test.npz"):
        '''Compare models with their FP32 reference.'''

        rounds: int | None = option("Runs timed of each one.  [default: 60]", least=2)

        def _run(self) -> None:
            ...

    command = Compare.command()

A field's name and annotation are the parameter's: `bool` is a flag, `Literal` a choice, and
`tuple[X, ...]` may be repeated. What has no default and may not be `None` is required. The classes here
are what several commands share.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args, get_origin, get_type_hints

import click

from trtcal.cli.output import is_quiet, note, print_json, say, say_written, verbosity
from trtcal.config import (
    FILE,
    TASKS,
    CalibrationConfig,
    Config,
    EvaluationConfig,
    Tasks,
    naming,
    parse_config,
    read_config,
    read_tags,
    read_toml,
)
from trtcal.documents import clear_places
from trtcal.documents.streams import shell_word
from trtcal.documents.trust import trusting
from trtcal.errors import DATA, MODEL, GateFailed, InputError, TrtcalError
from trtcal.limits import DO_NOT, INCONCLUSIVE
from trtcal.metrics import COVERAGE, FINDINGS

if TYPE_CHECKING:
    from trtcal.data import Dataset
    from trtcal.evaluate.tasks import TaskReader
    from trtcal.limits import Limit
    from trtcal.model import Model
    from trtcal.model.files import OnnxFile
    from trtcal.pipeline.guess import Draft

PATH = click.Path(path_type=Path)
DB = (
    f"SQLite file of the history.  [default: `history` in {FILE} of this folder, else "
    "trtcal/history.sqlite in the user's data folder]"
)
METRIC_FILE = (
    "Python file with metric(outputs, labels) -> {name: value}, called for each sample; higher is "
    "better."
)
MEASURED = (
    "File with what trtexec, Polygraphy or Nsight Systems measured of a variant, or the result of "
    "measure.sh; may be repeated. Without VARIANT= the file's name has to hold the variant's."
)
REDACT = (
    "Write no names of samples, users, hosts and folders, and no values of samples: docs/report.md "
    "lists what that is.  [default: redact under [report] in trtcal.toml]"
)
MEASURED_FILE = "[VARIANT[@DEVICE]=]FILE"
ON = "Device to build the models on, and to run and time them: see `trtcal device list`."
LAST = ("limits", "allow_undecided", "trust", "optimizations", "skipped", "config_path", "as_json")
"""The options that stand last in the help of every command, in this order."""
ELSEWHERE: dict[str, str] = read_toml(Path(__file__).with_name("elsewhere.toml"))
"""What a hint names in place of an option that the command which ends with it lacks."""
VERBOSITIES = (
    click.Option(["-q", "--quiet"], is_flag=True, help="Print no notes and no progress."),
    click.Option(["-v", "--verbose"], is_flag=True, help="Print all rows, and cut nothing off."),
)
NAMED = re.compile(r"`[^`]*`|(?<![\w-])--[a-z][a-z-]*")


def with_own_options(hint: str) -> str:
    """Return a hint with what stands in for options that the command which runs does not have."""
    context = click.get_current_context(silent=True)
    parameters = context.command.params if context else ()
    own = {name for parameter in parameters for name in parameter.opts}
    return NAMED.sub(
        lambda found: found[0] if not own or found[0] in own else ELSEWHERE.get(found[0], found[0]),
        hint,
    )


def option(about: str, *names: str, **settings: Any) -> Any:
    """Return a field that is an option: its help, and what click takes besides.

    `names` stand in place of `--field-name`, or beside it where all are short. `least` is the smallest
    number allowed, `formerly` the name that the option had.
    """
    return field(metadata={"names": names, "click": {"help": about, **settings}})


def argument(**settings: Any) -> Any:
    """Return a field that is an argument; of one that may be repeated at least one is required."""
    return field(metadata={"click": settings})


class Options:
    """Base of a command, and of options that commands share; a subclass is a frozen dataclass.

    A command has an example of its use, and does its work in `_run`.
    """

    example: ClassVar[str]

    def __init_subclass__(cls, *, example: str = "") -> None:
        super().__init_subclass__()
        cls.example = example
        dataclass(frozen=True, kw_only=True)(cls)

    def _run(self) -> None:
        raise NotImplementedError

    def _start(self) -> None:
        """Do the work; hints name the file given and options of this command, with -q no page."""
        try:
            self._run()
        except TrtcalError as error:
            error.hint = error.hint and with_own_options(self._with_file(error.hint))
            if is_quiet():
                error.page = ""
            raise

    def _with_file(self, hint: str) -> str:
        models = (getattr(self, name, None) for name in ("model", "reference", "baseline"))
        stem = str(next(filter(None, models), MODEL)).removesuffix(".onnx")
        if data := getattr(self, "test", None) or getattr(self, "data", None):
            hint = hint.replace(f"--data {DATA}", f"--data {shell_word(str(data))}")
        return re.sub(rf"\b{MODEL}([\w-]*\.onnx)", lambda name: shell_word(stem + name[1]), hint)

    def again(self, **changes: Any) -> tuple[str, ...]:
        """Return the words of this command with other values of some parameters."""
        words = [type(self).__name__.lower()]
        for parameter in _parameters(type(self)):
            value = changes.get(str(parameter.name), getattr(self, str(parameter.name), None))
            values = value if isinstance(value, tuple) else (value,)
            if isinstance(parameter, click.Argument):
                words += [str(each) for each in values if each is not None]
            elif value is True:
                words.append(parameter.opts[-1])
            elif value not in (None, False, (), parameter.default):
                groups = [(each,) for each in values] if parameter.multiple else [values]
                words += [str(word) for each in groups for word in (parameter.opts[-1], *each)]
        return tuple(words)

    @classmethod
    def command(cls) -> click.Command:
        """Return the command, called like the class."""
        return click.Command(
            cls.__name__.lower(),
            callback=partial(_start, cls),
            params=[*_parameters(cls), *VERBOSITIES],
            help=inspect.getdoc(cls),
            short_help=" ".join((inspect.getdoc(cls) or "").split("\n\n")[0].split()),
            epilog=f"Example: {cls.example}",
        )


def _start(options: type[Options], *, quiet: bool, verbose: bool, **values: Any) -> None:
    clear_places(_paths(values.values()))
    with verbosity(quiet, verbose), trusting(values.get("trust", False)):
        options(**values)._start()


def _paths(values: Iterable[object]) -> Iterator[Path]:
    for value in values:
        if isinstance(value, tuple):
            yield from _paths(value)
        elif isinstance(value, Path):
            yield value


def add_commands(group: click.Group, *kinds: type[Options]) -> None:
    """Add commands to a group."""
    for kind in kinds:
        group.add_command(kind.command())


def _parameters(options: Any) -> list[click.Parameter]:
    kinds = get_type_hints(options)
    places = {name: place for place, name in enumerate(LAST)}
    ordered = sorted(fields(options), key=lambda item: places.get(item.name, -1))
    parameters = [_parameter(item.name, kinds[item.name], item.metadata) for item in ordered]
    former = [item.metadata["click"].get("formerly") for item in ordered]
    pairs = zip(former, parameters, strict=True)
    return parameters + [_former(old, parameter) for old, parameter in pairs if old]


def _former(old: str, parameter: click.Parameter) -> click.Option:
    """Return a hidden option of a former name: it ends with an error that gives the name of today."""
    name = parameter.opts[-1]

    def refuse(_context: click.Context, _option: click.Parameter, value: str | None) -> None:
        if value is not None:
            raise InputError(f"{old} is now {name}", f"write `{name} {shell_word(value)}`")

    about = f"Now {name}."
    return click.Option([old], hidden=True, expose_value=False, callback=refuse, help=about)


def _parameter(name: str, kind: Any, declared: Mapping[str, Any]) -> click.Parameter:
    is_optional = NoneType in get_args(kind)
    plain = get_args(kind)[0] if is_optional else kind
    items = get_args(plain) if get_origin(plain) is tuple else (plain,)
    repeats, is_flag = items[-1] is Ellipsis, plain is bool
    settings = {name: value for name, value in declared["click"].items() if name != "formerly"}
    settings["type"] = settings.get("type") or _type(items[0], settings.pop("least", None))
    required = settings.pop("required", not (is_optional or "default" in settings))
    if "names" not in declared:
        return click.Argument([name], required=required, nargs=-1 if repeats else 1, **settings)
    names = declared["names"]
    if not any(flag.startswith("--") for flag in names):
        names = (*names, f"--{name.replace('_', '-')}")
    return click.Option(
        [name, *names],
        required=required and not (is_flag or repeats),
        is_flag=settings.pop("is_flag", is_flag or None),  # False: its value may be left out
        multiple=repeats,
        nargs=1 if repeats else len(items),
        show_default="default" in settings,
        **settings,
    )


def _type(kind: Any, least: float | None) -> Any:
    if get_origin(kind) is Literal:
        return click.Choice(get_args(kind))
    if least is None:
        return PATH if kind is Path else None if kind is bool else kind
    return click.IntRange(int(least)) if kind is int else click.FloatRange(least)


def config_here(path: Path | None = None) -> Config:
    """Return the given configuration, or that of the current folder, or an empty one."""
    if path is None and not Path(FILE).is_file():
        return Config(Path(FILE)).in_use()
    return read_config(path or Path(FILE)).in_use()


def history_path(path: Path | None) -> Path:
    """Return which history is meant: this one, that of trtcal.toml here, or the user's own."""
    from trtcal.runs.history import default_path

    return path or config_here().history or default_path()


def required(value: Any, what: str, option: str) -> Any:
    """Return a value that came from an option or from trtcal.toml; `InputError` if from neither."""
    if value is None:
        raise InputError(f"{what} is not given", f"give {option}, or set it in {FILE}")
    return value


def tags_of(pairs: Sequence[str]) -> dict[str, str]:
    """Return the tags that `--tag KEY=VALUE` gives; `InputError` if one is none."""
    wrong = [pair for pair in pairs if "=" not in pair]
    if wrong:
        raise InputError(f"{wrong[0]!r} is not KEY=VALUE", "write it like --tag team=vision")
    tags = {name: value for name, _, value in (pair.partition("=") for pair in pairs)}
    with naming("--tag"):
        return read_tags(tags)


def joined_tasks(configured: Tasks, chosen: Tasks) -> Tasks:
    """Return the tasks of options, and of those configured the ones that they leave."""
    if configured is None or chosen is None or isinstance(chosen, str):
        return chosen or configured
    return {**({"": configured} if isinstance(configured, str) else configured), **chosen}


class JsonOptions(Options):
    """The options of a command that prints its result as text or as JSON."""

    as_json: bool = option("Print the result as JSON.", "--json")

    def present(self, document: Any, show: Callable[[], object], path: Path | None = None) -> None:
        """Print a result: its document if JSON is asked for, else text, and where it was written."""
        if self.as_json:
            print_json(document)
            return
        show()
        if path is not None:
            say_written(path, document["digest"])

    def present_onnx(
        self, path: Path, written: OnnxFile, facts: dict[str, Any], show: Callable[[], object]
    ) -> None:
        """Print a result, and which ONNX file was written for it, with its file of weights if any."""
        where = {"output": str(path), "digest": written.digest, "weights": written.weights}
        self.present({**where, **facts}, show)
        if not self.as_json:
            say_written(path, written.digest)
            if written.weights is not None:
                say(f"wrote its weights beside it, where they must stay: {written.weights}")


class VerdictOptions(JsonOptions):
    """The option of a command that ends with a verdict."""

    allow_undecided: bool = option(
        "End with status 0, not 1, where the verdict is INCONCLUSIVE or a limit is undecided."
    )

    def refuse(self, word: str, sentence: str, hint: str) -> None:
        """`GateFailed` (exit status 1) unless a verdict is good, or open and that is allowed."""
        if word == DO_NOT or (word == INCONCLUSIVE and not self.allow_undecided):
            text = f"{word}: {sentence}" if self.as_json else f"the verdict is {word}"
            raise GateFailed(text, hint)


class LimitOptions(Options):
    """The option of a command whose figures are held to limits."""

    limits: tuple[str, ...] = option(
        'Limit on a figure, such as "top1 >= -1.0" or "speedup >= 1.3"; may be repeated. A bound '
        "with a sign limits the change from the reference.",
        "--limit",
        metavar="LIMIT",
    )


class OutputOptions(Options):
    """The options that choose which outputs of a model are judged, and as what."""

    task: tuple[str, ...] = option(
        f"Task of all outputs, or of one; may be repeated. TASK is one of {', '.join(TASKS)}.  "
        "[default: guessed for each output]",
        metavar="[OUTPUT=]TASK",
    )
    outputs: tuple[str, ...] = option(
        "Outputs to judge; may be repeated.  [default: all]", "--outputs", metavar="NAME[,NAME]"
    )

    @property
    def tasks(self) -> Tasks:
        """The task of all outputs, or of each that has one; "" has that of the others."""
        tasks = {output: task for output, _, task in (word.rpartition("=") for word in self.task)}
        return tasks[""] if [*tasks] == [""] else tasks or None

    @property
    def output_names(self) -> tuple[str, ...]:
        """The outputs to judge; none means all."""
        names = [name.strip() for words in self.outputs for name in words.split(",")]
        return tuple(dict.fromkeys(names))


class MeasureOptions(LimitOptions):
    """The options of a command that measures outputs on data, and holds the figures to limits."""

    batch: int | None = option("Samples in a batch.  [default: 32]", least=1)
    metric_file: Path | None = option(METRIC_FILE)


class GivenOptions(OutputOptions, MeasureOptions):
    """The options of a command that reads from model and data what no option says."""

    data: Path | None = option("Data to calibrate on; `trtcal calibrate --help` lists the formats.")
    test: Path | None = option("Data to judge on.  [default: a part of --data, held back]")
    labels: str | None = option(
        "Where labels are: in labels.csv, in the names of folders, or in COCO annotations of the "
        "data to judge on.  [default: detected from the files]",
        metavar="csv|folders|FILE.json",
    )
    targets: tuple[str, ...] = option(
        "Target to build for, such as sm89 or rtx4090; may be repeated.  [default: sm89]",
        "--target",
        metavar="TARGET",
    )

    def guess(self, path: Path, folder: Path, output: Path | None = None) -> tuple[Config, Draft]:
        """Return the configuration of a model, as it stands in a folder, and what of it is guessed."""
        from trtcal.model import load_model
        from trtcal.pipeline.guess import Sources, draft_config

        data = required(self.data, "the data", "--data")
        user = self.choices(Config())
        sources = Sources(data, self.test, self.labels, self.targets, output, user)
        draft = draft_config(load_model(path), sources, folder.absolute())
        config = parse_config(draft.text, folder.absolute() / FILE)
        note(*draft.guesses)
        return config.trusting(False, data, self.test, self.metric_file), draft

    def choices(self, config: Config) -> Config:
        """Return a configuration with the tasks, outputs, limits, batch and metric given here."""
        from trtcal.limits import joined, parse_limits

        evaluation = replace(
            config.evaluation,
            batch=self.batch or config.evaluation.batch,
            metric=self.metric_file or config.evaluation.metric,
        )
        return replace(
            config,
            task=joined_tasks(config.task, self.tasks),
            outputs=self.output_names or config.outputs,
            limits=joined(config.limits, parse_limits(self.limits)),
            evaluation=evaluation,
        )


class TrustOptions(Options):
    """The option of a command that may run programs of others."""

    trust: bool = option(
        f"Run scripts that {FILE} names, load engines built elsewhere, convert models that "
        "contain code. All of these are programs: trust their authors first."
    )


class PassOptions(Options):
    """The option of a command that takes preparation passes of the user's own."""

    own_passes: tuple[Path, ...] = option(
        "Python file with your own preparation passes, which run last; may be repeated.",
        "--pass",
        metavar="FILE.py[:FUNCTION]",
    )

    def with_passes(self, config: Config) -> Config:
        """Return the configuration with the passes given here, which are trusted."""
        settings = config.prepare
        passes = tuple(dict.fromkeys((*settings.passes, *self.own_passes)))
        config = config.trusting(False, *self.own_passes)
        return replace(config, prepare=replace(settings, passes=passes))


class ConfigOptions(JsonOptions):
    """The options of a command for which trtcal.toml has what is not given."""

    config_path: Path | None = option(
        f"Configuration that supplies what no option gives.  [default: {FILE} in this folder]",
        "--config",
    )

    @cached_property
    def config(self) -> Config:
        """The configuration given, or that of the current folder, or an empty one."""
        return config_here(self.config_path)

    def ready(self, model: Model, skipped: Sequence[str] = ()) -> Model:
        """Return a model made ready for Q/DQ; nodes that the passes left alone are noted."""
        from trtcal.model.passes import prepare_with_record
        from trtcal.pipeline.own_passes import passes_of

        settings, passes = self.config.prepare, passes_of(self.config)
        prepared = prepare_with_record(model, [*settings.skip, *skipped], settings.add, passes)
        note(*prepared.notes, head="note: not changed: ")
        return prepared.model


class JudgingOptions(ConfigOptions, LimitOptions):
    """The options of a command that holds what it measures to limits: given here or in trtcal.toml."""

    def limits_of(self, known: Callable[[Limit], bool]) -> tuple[Limit, ...]:
        """Return the limits given, and those of trtcal.toml that they leave.

        Of trtcal.toml only those count that are about what this command measures (`known`).
        """
        from trtcal.limits import joined, parse_limits
        from trtcal.metrics import check_known

        own = parse_limits(self.limits)
        has_own = getattr(self, "metric_file", None) or self.config.evaluation.metric
        metrics = [limit.metric for limit in (*own, *self.config.limits)]
        check_known(metrics, None if has_own else ())
        for limit in own:
            if not known(limit):
                measures = f"`trtcal compare ... --on {limit.device[1:]}` measures it"
                raise InputError(
                    f"this command does not measure the metric of the limit {limit}",
                    measures if limit.device else "see --help for the metrics of this command",
                )
        return joined([limit for limit in self.config.limits if known(limit)], own)

    @property
    def config_of_builds(self) -> Config:
        """The configuration with the limits on builds."""
        limits = self.limits_of(lambda limit: limit.about.of in (FINDINGS, COVERAGE))
        return replace(self.config, limits=limits)


class DataOptions(ConfigOptions, TrustOptions):
    """The options of a command that reads data."""

    data: Path | None = option(
        "Data: an .npz; a folder of .npy files or images; Polygraphy's .json; a script with "
        "load_data()."
    )
    labels: str | None = option(
        "Where labels are: in labels.csv of an image folder, in the names of its folders, or in "
        "COCO annotations.",
        metavar="csv|folders|FILE.json",
    )

    @cached_property
    def config(self) -> Config:
        """The configuration, whose scripts run if they are given here too, or with --trust."""
        named = (getattr(self, name, None) for name in ("data", "metric_file"))
        return config_here(self.config_path).trusting(self.trust, *named)

    def open_data(self, model: Model, settings: CalibrationConfig | EvaluationConfig) -> Dataset:
        """Return the data for a model: as given, or as a section of trtcal.toml has them.

        Without data to judge on it is the part of the others that a run holds back.
        """
        from trtcal.data import open_dataset
        from trtcal.evaluate.replay import carry
        from trtcal.model.loaders import Declared, advising, declared_by

        config = self.config
        is_test = settings is config.evaluation and self.data is None
        if is_test and settings.data is None and config.calibration.data is not None:
            return self._held_back(model)
        source = required(self.data or settings.data, "the data", "--data")
        config.check_trusted(source)
        labels = self.labels or settings.labels
        is_array = source.suffix in (".npz", ".npy")
        declared = Declared() if is_array else declared_by(model.path, model.proto)
        with advising(declared):
            images = config.images or declared.config
            dataset = open_dataset(source, model, images, labels, config.data)
        if config.images is None and dataset.files is not None:
            note(*declared.lines)
        sizes = len({str(shapes) for _, shapes in dataset.shapes})
        if sizes > 1:
            note(f"note: the samples have {sizes} different sizes: a batch has samples of one size")
        dataset = carry(model, dataset, config.data)
        if dataset.about:
            note(f"note: {dataset.about}")
        return dataset

    def _held_back(self, model: Model) -> Dataset:
        from trtcal.pipeline.inputs import open_section, split

        whole = open_section(model, self.config, self.config.calibration, "calibration.data")
        part = split(model, whole)[1]
        note(
            f"note: judging on {len(part)} of {len(whole)} samples of {whole.name}, which `trtcal "
            "run` holds back"
        )
        return part


class TaskOptions(OutputOptions, ConfigOptions):
    """The options of a command that judges a model's outputs: given here or in trtcal.toml."""

    @property
    def task_reader(self) -> TaskReader:
        """The task and the outputs that count, to be read from the model's outputs if not given."""
        from trtcal.evaluate.tasks import TaskReader

        return TaskReader(self.chosen_task, self.chosen_outputs)

    @property
    def chosen_task(self) -> Tasks:
        """The tasks given here, then those of trtcal.toml; None if they are to be guessed."""
        return joined_tasks(self.config.task, self.tasks)

    @property
    def chosen_outputs(self) -> tuple[str, ...]:
        """The outputs that count, given here or in trtcal.toml; none means all."""
        return self.output_names or self.config.outputs

    def say_guesses(self, reader: TaskReader) -> None:
        """Note what each output was taken for, and why, where the user did not say."""
        note(*(reader.known.guesses if reader.known else ()), head="guessed: ")


class EvaluationOptions(DataOptions, TaskOptions, JudgingOptions, MeasureOptions):
    """The options of a command that compares models on data."""

    slices: Path | None = option(
        "CSV file of slices: a header of attributes, then one row for each sample."
    )

    @property
    def test_data(self) -> Path | None:
        """The data to judge on, given here or in trtcal.toml."""
        return self.data or self.config.evaluation.data

    @property
    def test_batch(self) -> int:
        """The size of a batch, where the model prescribes none."""
        return self.batch or self.config.evaluation.batch


class ModelOptions(ConfigOptions):
    """The options of a command on a float model."""

    model: Path | None = argument()

    def load_model(self) -> Model:
        """Return the model given, or that of trtcal.toml."""
        from trtcal.model import load_model

        return load_model(required(self.model or self.config.model, "the model", "MODEL"))


class SkipOptions(Options):
    """The option of a command that runs the preparation passes."""

    skipped: tuple[str, ...] = option(
        "Preparation pass to skip (`trtcal prepare --list` lists them); may be repeated.",
        "--skip-pass",
        metavar="NAME",
        formerly="--skip",
    )


class PreparedOptions(DataOptions, ModelOptions, SkipOptions):
    """The options of a command that makes a model ready for Q/DQ first."""

    def prepare(self, model: Model, optimizations: Path | None = None) -> Model:
        """Return a model made ready for Q/DQ, with optimizations if there are any."""
        prepared = self.ready(model, self.skipped)
        if optimizations is None:
            return prepared
        from trtcal.ptq.artifact import read_optimizations

        return read_optimizations(optimizations).apply(prepared)


class OptimizedOptions(PreparedOptions):
    """The options of a command on a model and its optimizations."""

    optimizations: Path | None = option(
        "Optimizations that `trtcal quantize --improve` wrote; needs the ranges written beside "
        "them."
    )


class CalibratedOptions(OptimizedOptions):
    """The options of a command on a model and its ranges."""

    ranges: Path = option(
        "Ranges: the calibration.json that `trtcal calibrate` wrote.",
        "--calibration",
        default=Path("calibration.json"),
    )

    def open_all(self) -> tuple[Model, Model, Dataset]:
        """Return the model, the same prepared, and the data to evaluate on."""
        model = self.load_model()
        prepared = self.prepare(model, self.optimizations)
        return model, prepared, self.open_data(model, self.config.evaluation)


class PairOptions(JsonOptions):
    """The arguments of a command that compares two files."""

    a: Path = argument()
    b: Path = argument()

    @property
    def title(self) -> str:
        """The title of a table of what differs."""
        return f"{self.a} -> {self.b}"
