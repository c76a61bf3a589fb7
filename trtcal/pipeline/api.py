"""Each stage of the pipeline for paths and objects: what `import trtcal` gives.

Models are paths, `onnx.ModelProto`, `Model`, or what `quantize` and `improve` give. Data are what
`trtcal.data.open_dataset` takes. Nothing is written unless an `output` says where. The examples run
in the repository's folder.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trtcal.backends import building
from trtcal.backends.capabilities import check_precisions
from trtcal.backends.options import BuildOptions, with_sizes
from trtcal.backends.registry import find_backend
from trtcal.calibration import ObserveOptions, observe
from trtcal.check.data_check import check_data as check
from trtcal.check.evaluation_data import EvaluationCheck
from trtcal.config import Config, DataConfig, ImagesConfig, Tasks, read_config
from trtcal.data import Dataset, size_ranges
from trtcal.data import open_dataset as open_data
from trtcal.data.issues import DataCheck
from trtcal.data.opening import Data
from trtcal.documents import Workplace, from_fields, write_document
from trtcal.documents.overview import Overview, Shown
from trtcal.errors import InputError
from trtcal.evaluate.ab import ABOptions, ABTest, Question
from trtcal.evaluate.ab import ab_test as test
from trtcal.evaluate.collectors import CollectSettings
from trtcal.evaluate.comparison import CompareSettings, Comparison
from trtcal.evaluate.comparison import compare as compare_variants
from trtcal.evaluate.on_device import open_compared
from trtcal.evaluate.overflow import tensor_peaks
from trtcal.evaluate.range_choice import AUTO, ranges_by
from trtcal.evaluate.replay import carry, silent
from trtcal.evaluate.search.limits import Limits
from trtcal.evaluate.search.pipeline import Result, SearchOptions, cache_beside, find_plans
from trtcal.evaluate.search.sensitivity import Sampling, Sensitivities, measure_sensitivities
from trtcal.evaluate.tasks import TaskReader
from trtcal.evaluate.variants import open_variant
from trtcal.evidence.diagnosis import build_diagnosis
from trtcal.evidence.layers.reading import read_engine
from trtcal.evidence.log.reader import events_of_file
from trtcal.evidence.log.recognition import Event
from trtcal.evidence.log.summary import summarize
from trtcal.evidence.manifest import Build
from trtcal.limits import parse_limits
from trtcal.model import Model, ModelSource, load_model
from trtcal.model.files import write_onnx
from trtcal.model.passes import prepare
from trtcal.pipeline import job
from trtcal.pipeline.improving import improved_for_search
from trtcal.pipeline.journal import Say
from trtcal.ptq.improver import Improved
from trtcal.ptq.improver import improve as optimize
from trtcal.ptq.optimizations import ImproveOptions
from trtcal.quantization import Plan, find_layers, plan_of, read_plan, tensors_to_observe
from trtcal.quantization import quantize as write_qdq
from trtcal.quantization.qdq import QuantizedModel, asked_precisions, without_ranges
from trtcal.ranges import Calibration, Parameters
from trtcal.reporting.document import assemble, assemble_again
from trtcal.reporting.render import render, write_page
from trtcal.runs.history import History

PathLike = str | os.PathLike[str]
AnyModel = ModelSource | QuantizedModel | Improved
Variants = Mapping[str, AnyModel | Build] | Sequence[AnyModel | Build]
Named = tuple[str, AnyModel | Build]
Reported = Calibration | Comparison | ABTest | Build | Plan


def _model(source: AnyModel) -> Model:
    if isinstance(source, Improved):
        source = source.quantized
    return load_model(source.proto if isinstance(source, QuantizedModel) else source)


def open_dataset(
    data: Data,
    model: AnyModel,
    images: ImagesConfig | None = None,
    labels: str | Path | None = None,
    constants: Mapping[str, Any] | None = None,
    states: Mapping[str, str] | None = None,
) -> Dataset:
    """Open and check data for a model's inputs.

    `data`: a path, `{input: array}`, one array for a model with one input, or an iterable of such
    feeds that can be read again, such as a list or a PyTorch DataLoader. The first axis is the
    samples. `images` is the preprocessing of image files, `labels` says where their classes are
    ("csv", "folders"), or is a JSON file of COCO annotations. `constants` are inputs with the same
    value for all samples. `states` maps outputs to inputs that take their values at the next
    sample: each feed is a sequence, which begins with zeros or with the input's constant, and runs
    once here. `InputError` if the data do not fit the model, or hold NaN or infinite values.

    >>> len(open_dataset("samples/digits/calibration.npz", "samples/digits/digits.onnx"))
    512
    >>> import numpy as np
    >>> len(open_dataset(np.zeros((3, 1, 8, 8), np.float32), "samples/digits/digits.onnx"))
    3
    """
    loaded = _model(model)
    settings = DataConfig(dict(constants or {}), dict(states or {}))
    return carry(loaded, open_data(data, loaded, images, labels, settings), settings)


def check_data(model: AnyModel, data: Data) -> DataCheck:
    """Check whether data are prepared as a model expects; no issue does not prove that they are.

    Up to 64 samples are run, in float. `BackendError` if the model cannot be run.

    >>> check_data("samples/digits/digits.onnx", "samples/digits/calibration.npz").issues
    ()
    >>> import numpy as np
    >>> check = check_data("samples/digits/digits.onnx", np.zeros((64, 1, 8, 8), np.float32))
    >>> check.issues[0].kind
    'zero_samples'
    """
    loaded = _model(model)
    return check(loaded, open_data(data, loaded))


def calibrate(
    model: AnyModel,
    data: Data,
    method: str = AUTO,
    parameters: Parameters | None = None,
    batch: int = 32,
    workers: int = 0,
) -> Calibration:
    """Run a model on data and choose a range for every tensor that needs one for INT8.

    `method` is `auto`, which chooses a method for each tensor by what INT8 loses on some of the
    samples, `minmax`, `percentile`, `entropy`, `mse` or the name of a plug-in, `parameters` are its
    parameters. `batch` is the number of samples in a batch; `workers`
    processes share the work. The result does not depend on either. `InputError` for an unknown
    method or parameter.

    >>> digits, data = "samples/digits/digits.onnx", "samples/digits/calibration.npz"
    >>> calibration = calibrate(digits, data, "minmax")
    >>> calibration.samples, calibration.ranges["image"].amax
    (512, 1.0)
    """
    loaded = _model(model)
    prepared, dataset = prepare(loaded), open_data(data, loaded)
    tensors = tensors_to_observe(find_layers(prepared))
    options = ObserveOptions(batch, workers=workers)
    observation = observe(prepared, dataset, tensors, options)
    return ranges_by(method, parameters, prepared, dataset, observation)


def quantize(
    model: AnyModel,
    calibration: Calibration | PathLike | None = None,
    plan: Plan | Mapping[str, Any] | PathLike | None = None,
    output: PathLike | None = None,
    precision: str | None = None,
    data: Data | None = None,
) -> QuantizedModel:
    """Write Q/DQ into a model where a plan asks for INT8, FP8, INT4 or NVFP4, and casts for fp16.

    Without a `plan`, every layer that can have `precision` gets it: "int8" if None, "fp8", "int4",
    "nvfp4" or "fp16"; a mapping is a plan's JSON form. INT4 and NVFP4 are for weights: these need
    no `calibration`, fp16 neither. `output` is the ONNX file to write. What overflows float16 on
    the samples of `data` stays in float32. `InputError` if the calibration is missing or of another
    model, the plan matches nothing, or both a plan and a precision are given.

    >>> digits, data = "samples/digits/digits.onnx", "samples/digits/calibration.npz"
    >>> quantized = quantize(digits, calibrate(digits, data), {"layers": {"head/gemm": "fp32"}})
    >>> quantized.asked["stem/conv"], quantized.asked["head/gemm"]
    ('int8', 'fp32')
    >>> quantize(digits, precision="fp16").asked["head/gemm"]
    'fp16'
    """
    if plan is not None and precision is not None:
        raise InputError("both a plan and a precision are given", "leave one of them out")
    ranges = None if calibration is None else _calibration(calibration)
    asked = _plan(plan) if precision is None else Plan(precision)
    loaded = _model(model)
    prepared = prepare(loaded)
    chosen = asked or Plan()
    needs_peaks = "fp16" in chosen.asked and not (ranges and ranges.peaks)
    if data is not None and needs_peaks and (ranges or not chosen.ranged):
        peaks = tensor_peaks(prepared, open_data(data, loaded))
        ranges = replace(ranges or without_ranges(prepared), peaks=peaks)
    quantized = write_qdq(prepared, ranges, asked)
    if output is not None:
        write_onnx(Path(output), quantized.proto)
    return quantized


def _calibration(source: Calibration | PathLike) -> Calibration:
    if isinstance(source, Calibration):
        return source
    _check_path(source, "a calibration", "the Calibration that `calibrate` returns")
    return Calibration.read(Path(source))


def _plan(plan: Plan | Mapping[str, Any] | PathLike | None) -> Plan | None:
    if plan is None or isinstance(plan, Plan):
        return plan
    if isinstance(plan, Mapping):
        return plan_of(plan, "plan")
    _check_path(plan, "a plan", "a Plan, its JSON form as a dict, or None")
    return read_plan(Path(plan))


def _check_path(value: object, what: str, other: str) -> None:
    if not isinstance(value, (str, os.PathLike)):
        name = type(value).__name__
        raise InputError(f"an object of type {name} is not {what}", f"give a path, or {other}")


def improve(
    model: AnyModel,
    data: Data,
    effort: str = "fast",
    time_limit_s: float = 600.0,
    plan: Plan | Mapping[str, Any] | PathLike | None = None,
) -> Improved:
    """Find the ranges and optimizations with which a model loses least, without training.

    A quarter of the samples (16 to 128, a third if there are fewer than 32) is held back to judge
    the optimizations. `effort` is "fast" or "best", `time_limit_s` the number of seconds after
    which no further optimization is tried. `plan` says what is quantized, all to INT8 if None.
    `InputError` for fewer than 8 samples.

    >>> improved = improve("samples/digits/digits.onnx", "samples/digits/calibration.npz")
    >>> improved.quantized.asked["stem/conv"]
    'int8'
    """
    loaded = _model(model)
    options = ImproveOptions(effort, time_limit_s, plan=_plan(plan) or Plan())
    return optimize(prepare(loaded), open_data(data, loaded), options, silent)


def build(
    model: AnyModel,
    output: PathLike,
    target: str = "cpu",
    options: BuildOptions | None = None,
    data: Data | None = None,
) -> Build:
    """Build an engine into the folder `output`, with its log and the list of its layers.

    `target` is `cpu`, `sm89`, `rtx4090` or another of `trtcal doctor`; `options` replaces it if
    given. The samples of `data` give the sizes of dynamic inputs; a quantized model knows those of
    its calibration. `BackendError` if the backend is missing or fails, `ResourceError` at the time
    limit.

    >>> import tempfile
    >>> build("samples/digits/digits.onnx", tempfile.mkdtemp()).backend
    'onnxruntime'
    """
    backend, chosen = find_backend(None, options.target if options else target)
    loaded, settings = _model(model), replace(options or BuildOptions(chosen), target=chosen)
    check_precisions(set(asked_precisions(loaded.proto).values()), (chosen,))
    if data is not None:
        settings = with_sizes(settings, loaded, size_ranges(loaded, open_data(data, loaded)))
    return building.build(loaded, backend, settings, Path(output))


def diagnose(
    source: Build | PathLike,
    model: AnyModel | None = None,
    logs: Sequence[PathLike] = (),
    config: Config | None = None,
) -> build_diagnosis.Diagnosis:
    """Return the findings on a build, the costliest first, with evidence and fix.

    `source`: a `Build`, its folder, or the layers of an engine that another tool built (inspector
    JSON or a log). `logs` are further build logs, `config` has limits and accepted findings.

    >>> import tempfile
    >>> diagnose(build("samples/digits/digits.onnx", tempfile.mkdtemp())).findings
    ()
    """
    paths, settings = tuple(map(Path, logs)), config or Config()
    loaded = None if model is None else _model(model)
    if isinstance(source, Build):
        return build_diagnosis.check_build(source, settings, loaded, paths)
    _check_path(source, "a build", "the Build that `build` returns")
    path = Path(source)
    if path.is_dir():
        return build_diagnosis.check_folder(path, settings, paths, loaded)
    return build_diagnosis.check_engine(read_engine(path, None), settings, paths, loaded)


@dataclass(frozen=True)
class BuildLog(Shown):
    """What a build log says: its events in order, and their summary.

    `summary` has counts by category, the findings with meaning and remedy, and whether it failed.

    >>> import tempfile
    >>> log = read_log(build("samples/digits/digits.onnx", tempfile.mkdtemp()).log)
    >>> log.summary["is_failed"], len(log.events) > 0
    (False, True)
    """

    events: tuple[Event, ...]
    summary: Mapping[str, Any]

    def overview(self) -> Overview:
        """Return what came of the build, and the kinds of its messages, the worst first."""
        columns = {"kind": "{category}", "severity": "{severity}", "count": "{count}"}
        columns |= {"message": "{message}", "meaning": "{meaning}", "fix": "{fix}"}
        counts = ", ".join(f"{n} {name}" for name, n in self.summary["severities"].items())
        rows = self.summary["findings"]
        brief = (f"{row['severity']}: {row['message']}" for row in rows)
        title = f"Build log with result {self.summary['result']!r}; messages: {counts}"
        return Overview(title, brief=brief, things=rows, columns=columns)


def read_log(path: PathLike) -> BuildLog:
    """Read the build log of TensorRT 5 to 11, TensorRT-RTX, trtexec, Polygraphy or ONNX Runtime.

    `InputError` if it cannot be read.

    >>> import tempfile
    >>> log = read_log(build("samples/digits/digits.onnx", tempfile.mkdtemp()).log)
    >>> log.summary["is_failed"]
    False
    """
    _check_path(path, "a build log", "the text saved in a file")
    events = tuple(events_of_file(Path(path)))
    return BuildLog(events, summarize(events))


@contextlib.contextmanager
def _written(sources: Sequence[Named]) -> Iterator[list[tuple[Path, str]]]:
    """Yield the paths and names of models; those in memory are written to a temporary folder."""
    with Workplace() as folder:
        yield [(_path(source, Path(folder)), name) for name, source in sources]


def _path(source: AnyModel | Build, folder: Path) -> Path:
    if isinstance(source, Build):
        return source.folder
    if isinstance(source, (str, os.PathLike)):
        return Path(source)
    if isinstance(source, Model) and source.path.is_file():
        return source.path
    model = _model(source)
    path = folder / f"{len(list(folder.iterdir()))}-{model.name}.onnx"
    write_onnx(path, model.proto)
    return path


def _named(variants: Variants) -> list[Named]:
    """Return variants with names: those of a sequence after their files, or by number in memory."""
    if isinstance(variants, Mapping):
        return list(variants.items())
    if isinstance(variants, (str, os.PathLike)) or not isinstance(variants, Sequence):
        raise InputError("`variants` is not a list or a dict", "give a list, or a dict of names")
    return [(_name(each) or f"variant {number}", each) for number, each in enumerate(variants, 1)]


def _name(source: AnyModel | Build) -> str | None:
    if isinstance(source, (str, os.PathLike)):
        return Path(source).stem
    return source.name if isinstance(source, Model) else None


def compare(
    reference: AnyModel,
    variants: Variants,
    data: Data,
    limits: Sequence[str] = (),
    batch: int = 32,
    rounds: int | None = None,
    task: Tasks = None,
    outputs: Sequence[str] = (),
    on: str | None = None,
) -> Comparison:
    """Compare variants with their FP32 reference: accuracy on all data, latency on the first batch.

    `variants` are models or builds, in a dict by name or in a list. `limits` are strings like
    "top1 >= -1.0" or "speedup >= 1.3". `batch` is the number of samples in a batch; `rounds` is
    the number of timed runs of each model: 60 if a limit is about times, else 6 at most. `task` and
    `outputs` are guessed from the reference's outputs if not given. `on` is the name of a device
    that builds, runs and times the models. `InputError` if two models have the same name, the
    reference included.

    >>> digits, data = "samples/digits/digits.onnx", "samples/digits/calibration.npz"
    >>> int8 = quantize(digits, calibrate(digits, data))
    >>> comparison = compare(digits, {"int8": int8}, "samples/digits/test.npz", rounds=3)
    >>> [row.name for row in comparison.rows]
    ['digits', 'int8']
    >>> bool(comparison.rows[1].accuracy.sqnr_db > 20)
    True
    """
    loaded, settings = _model(reference), parse_limits(limits)
    sources: list[Named] = [(_name(reference) or "FP32", reference), *_named(variants)]
    dataset = open_data(data, loaded)
    with _written(sources) as written:
        first, candidates, crashes = open_compared(written, loaded, dataset, on)
        checker = EvaluationCheck(loaded, dataset)
        question = CollectSettings(task=task, outputs=tuple(outputs), checker=checker)
        options = CompareSettings(batch, rounds, question, crashes=crashes)
        return compare_variants(first, candidates, dataset, settings, options)


def ab_test(
    baseline: AnyModel,
    candidate: AnyModel | Build,
    data: Data,
    limits: Sequence[str] = (),
    metric: str | None = None,
    options: ABOptions | None = None,
    task: Tasks = None,
    outputs: Sequence[str] = (),
) -> ABTest:
    """Test whether a candidate can replace a baseline, by paired intervals on the same samples.

    `limits` are strings like "top1 >= -0.5". Without a limit, top-1 (agreement, if the data have
    no labels) may fall by 1 point; docs/statistics.md has the limits of other tasks. `task` and
    `outputs` are guessed from the baseline's outputs if not given. The verdict is SHIP, SHIP WITH
    CARE, DO NOT SHIP or INCONCLUSIVE.

    >>> digits, data = "samples/digits/digits.onnx", "samples/digits/calibration.npz"
    >>> int8 = quantize(digits, calibrate(digits, data))
    >>> ab_test(digits, int8, "samples/digits/test.npz", ["top1 >= -5.0"]).verdict.word
    'SHIP'
    """
    loaded = _model(baseline)
    dataset = open_data(data, loaded)
    question = Question(parse_limits(limits), metric)
    settings = options or ABOptions(32)
    settings = replace(settings, task=task or settings.task, outputs=outputs or settings.outputs)
    if settings.reference is None:
        settings = replace(settings, checker=EvaluationCheck(loaded, dataset))
    with _written([("A", baseline), ("B", candidate)]) as (first, second):
        return test(open_variant(*first), open_variant(*second), dataset, question, settings)


def sensitivity(
    model: AnyModel,
    calibration: Calibration | PathLike,
    data: Data,
    samples: int = Sampling.samples,
    task: Tasks = None,
    outputs: Sequence[str] = (),
) -> Sensitivities:
    """Measure how much each layer of a model loses in INT8, on the first `samples` of the data.

    `ranked` of the result has the layers, the most sensitive first: the loss of each quantized
    alone, and with all others quantized. `task` and `outputs` are guessed from the model's outputs
    if not given. `InputError` if no layer has ranges.

    >>> digits, data = "samples/digits/digits.onnx", "samples/digits/calibration.npz"
    >>> result = sensitivity(digits, calibrate(digits, data), "samples/digits/test.npz", 16)
    >>> len(result.ranked), result.measure
    (10, 'kl')
    """
    loaded = _model(model)
    sampling = Sampling(samples, reader=TaskReader(task, tuple(outputs)))
    table, dataset = _calibration(calibration), open_data(data, loaded)
    return measure_sensitivities(prepare(loaded), table, dataset, sampling)


def search(
    model: AnyModel,
    calibration: Calibration | PathLike,
    data: Data,
    limits: Sequence[str] = (),
    options: SearchOptions | None = None,
    output: PathLike | None = None,
) -> Result:
    """Find the layers to leave out of INT8: plans from the fastest to the most accurate.

    They are of the result's `model` and `calibration`, which are optimized where INT8 falls short.
    `limits` are strings like "top1 >= -0.3" or "speedup >= 2"; they take precedence over those of
    `options`, which has the GPU to estimate times for and how much to measure. `tested` of the
    result is the A/B test of the recommended plan against the limits, as `ab_test` makes it. The
    folder `output` keeps the measurements, so that the same search resumes where it was stopped.
    `InputError` for a limit on a metric that the search does not measure.

    >>> digits, data = "samples/digits/digits.onnx", "samples/digits/calibration.npz"
    >>> result = search(digits, calibrate(digits, data), "samples/digits/test.npz")
    >>> result.found.recommended is not None
    True
    """
    loaded = _model(model)
    dataset, table = open_data(data, loaded), _calibration(calibration)
    with contextlib.ExitStack() as stack:
        folder = output or stack.enter_context(Workplace())
        settings = options or SearchOptions()
        reader = TaskReader(settings.reader.name, settings.reader.outputs)  # reads one model
        settings = replace(settings, reader=reader, tests={})
        if limits:
            settings = replace(settings, limits=Limits(parse_limits(limits)))
        cache = cache_beside(Path(folder), loaded, dataset, reader)
        prepared = prepare(loaded)
        if improved := improved_for_search(prepared, table, dataset, settings):
            prepared, table = improved.optimized, improved.calibration
        return find_plans(prepared, table, dataset, settings, cache)


@dataclass(frozen=True)
class Report(Shown):
    """A report: its JSON document, and the page that shows it, `page` if that was written.

    `repr` is the verdict; a notebook shows it with its limits and a link to the page.

    >>> digits, data = "samples/digits/digits.onnx", "samples/digits/calibration.npz"
    >>> int8 = quantize(digits, calibrate(digits, data))
    >>> comparison = compare(digits, {"int8": int8}, "samples/digits/test.npz", rounds=3)
    >>> page = report([comparison])
    >>> page.verdict.word in ("SHIP", "SHIP WITH CARE", "INCONCLUSIVE")
    True
    """

    document: dict[str, Any]
    html: str
    page: Path | None = None

    @property
    def verdict(self) -> job.Verdict:
        """The word (SHIP, SHIP WITH CARE, DO NOT SHIP or INCONCLUSIVE) with its sentence."""
        return from_fields(job.Verdict, self.document["measured"]["verdict"])

    def overview(self) -> Overview:
        """Return the verdict, with a link to the page if that was written."""
        return self.verdict.overview(self.page)


def report(
    source: PathLike | Reported | Sequence[Reported], output: PathLike | None = None
) -> Report:
    """Make the report on a run's folder, or on results in memory: at least a comparison.

    With `output`, the HTML page is written there and its JSON beside it. `InputError` if the
    source has no results to report.

    >>> digits, data = "samples/digits/digits.onnx", "samples/digits/calibration.npz"
    >>> calibration = calibrate(digits, data)
    >>> variants = {"int8": quantize(digits, calibration)}
    >>> comparison = compare(digits, variants, "samples/digits/test.npz", rounds=3)
    >>> report([calibration, comparison]).document["kind"]
    'report'
    """
    folder: Path | None = None
    if isinstance(source, (str, os.PathLike)):
        folder = Path(source)
        document = assemble_again(folder)
    else:
        with Workplace() as place:
            _collect(source if isinstance(source, Iterable) else [source], Path(place))
            document = assemble(Path(place))
            document["measured"]["folder"] = "session"
    if output is not None:
        document = write_page(Path(output), document, folder)
    return Report(document, render(document), None if output is None else Path(output))


def _collect(results: Sequence[Reported], folder: Path) -> None:
    for number, result in enumerate(results):
        if isinstance(result, Build):
            shutil.copytree(result.folder, folder / str(number))
        elif isinstance(result, (Calibration, Comparison, ABTest, Plan)):
            write_document(folder / f"{number}.json", result.to_document())
        else:
            raise InputError(
                f"an object of type {type(result).__name__} cannot be reported",
                "give a result of calibrate, compare, ab_test or build, a Plan, or the folder of a run",
            )


def run(
    config: PathLike | Config,
    history: History | None = None,
    say: Say = lambda line: None,
    trust: bool = False,
) -> job.RunResult:
    """Do everything that a `trtcal.toml` says, as `trtcal run` does; nothing is added to `history`.

    The report compares the run with the last run of the same model in `history`. `say` is called
    with each line about the work. Scripts that a file names run only with `trust`. `InputError`
    for a wrong configuration.

    >>> result = run("samples/digits/trtcal.toml")  # doctest: +SKIP
    >>> result.folder.name  # doctest: +SKIP
    'digits'
    """
    if not isinstance(config, Config):
        _check_path(config, "a configuration", "a trtcal.Config")
        config = read_config(Path(config)).trusting(trust)
    return job.run(config, "trtcal run", silent, say, history)
