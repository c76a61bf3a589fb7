"""`trtcal calibrate`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from trtcal.cli.advice import advise, remember
from trtcal.cli.check_data import warn
from trtcal.cli.options import PreparedOptions, option
from trtcal.cli.output import (
    is_verbose,
    most,
    note,
    parameters,
    print_overview,
    progress,
    reasons,
    remark,
    say,
    say_more,
    size_in_bytes,
)
from trtcal.errors import some

if TYPE_CHECKING:
    from trtcal.calibration import Observation, ObserveOptions
    from trtcal.calibration.profile import Phases
    from trtcal.data import Dataset
    from trtcal.data.issues import DataCheck
    from trtcal.model import Model
    from trtcal.ranges import Calibration, TensorRange

NAMES_SHOWN = 10  # arrays, or doubtful ranges
MOST_CLIPPED = 0.01  # of a tensor's values
LEAST_COVERED = 0.1  # of its largest value
ALONE = ("batch", "workers", "cluster", "profile", "max_memory", "histograms", "all_tensors")
"""The options that do not go with --how-many."""


class Calibrate(
    PreparedOptions,
    example="trtcal calibrate model.onnx --data images.npz --method percentile "
    "-p percentile=99.9 -o calibration.json",
):
    """Choose the range of every tensor of MODEL from data, and write calibration.json.

    trtcal.toml can name MODEL and the data. One pass over the data fills a histogram for each
    tensor; a method reads only the histograms. The output is a summary, with -v every range. After
    an interruption the same command resumes from the checkpoint beside its output.

    The method `auto` chooses one of the others for each tensor, by what INT8 loses at the outputs
    on 8 to 64 of the samples. With fewer than 8 samples the histograms alone decide.

    --how-many judges ranges from 8, 16, 32, ... of the samples on the other samples, by the loss
    of INT8. It writes nothing, unless -o names a file for the learning curve.
    """

    method: str | None = option(
        "auto, minmax, percentile, entropy, mse, or the name of a plug-in.  [default: auto]"
    )
    pairs: tuple[str, ...] = option(
        "Parameter of the method; may be repeated.", "-p", "--parameter", metavar="NAME=VALUE"
    )
    batch: int | None = option("Samples in a batch.  [default: 32]", least=1)
    workers: int | None = option("Worker processes that share the cores.  [default: 1]", least=1)
    cluster: Literal["ray"] | None = option(
        "Run the workers on a Ray cluster; without --workers, on all its cores."
    )
    max_memory: str | None = option(
        "Memory limit, such as 4GB; the data are read several times if needed.", metavar="SIZE"
    )
    profile: bool = option("Print how long each stage took, and how busy the cores were.")
    histograms: Path | None = option(
        "Keep the histograms in this .npz file; if they fit the model and data, nothing is run."
    )
    output: Path | None = option("JSON file for the ranges.  [default: calibration.json]", "-o")
    all_tensors: bool = option(
        "Also observe what TensorRT's calibration cache lists beside the tensors of Q/DQ."
    )
    how_many: bool = option(
        "Choose no ranges: estimate how many samples this model needs, with an interval."
    )

    def _run(self) -> None:
        from trtcal.calibration import cached, create_calibrator, observe
        from trtcal.calibration.cache_tensors import CacheTensors, cache_tensors
        from trtcal.calibration.profile import Phases
        from trtcal.check.data_check import check_data
        from trtcal.cli.held_out import choose, note_if_few, refuse, show_curve
        from trtcal.data import size_ranges
        from trtcal.documents import together, unfinished
        from trtcal.quantization import find_layers, tensors_to_observe

        phases = Phases()
        if self.how_many:
            refuse({name.replace("_", "-"): getattr(self, name) for name in ALONE})
        settings = self.config.calibration
        chosen = self.method or settings.method
        values = {**settings.parameters.get(chosen, {}), **parameters(self.pairs)}
        create_calibrator(chosen, values)  # a wrong name is refused before the work, not after
        loaded = self.load_model()
        prepared = self.prepare(loaded)
        phases.lap("model")
        tensors = tensors_to_observe(find_layers(prepared))
        listed = cache_tensors(loaded) if self.all_tensors else CacheTensors({}, {}, {})
        more = listed.beyond(tensors)
        dataset = self.open_data(loaded, settings)
        if dataset.unused:
            note(f"note: arrays of the data that are not used: {some(dataset.unused, NAMES_SHOWN)}")
        if self.how_many:
            show_curve(self, prepared, dataset, chosen, values)
            return
        note_if_few(len(dataset))
        output = self.output or Path("calibration.json")

        kept = self.histograms or output
        checks: list[DataCheck] = []

        def count(network: Model, names: list[str], place: Path) -> Observation:
            how = _observe_options(self, unfinished(place))
            with progress(f"observing {len(names)} tensors", len(dataset), "samples") as advance:
                return observe(network, dataset, names, how, advance, remark)

        def make() -> Observation:
            size = 1 if self.max_memory else 16
            checks.append(check_data(loaded, dataset, batch_size=size, fingerprint=False))
            warn(checks[0])
            phases.lap("data check")
            seen = count(prepared, tensors, kept)
            rest = kept.with_stem(f"{kept.stem}-rest")  # of the float model, which has their names
            further = count(loaded, more, rest).histograms if more else {}
            return replace(seen, histograms=seen.histograms | further)

        observation = cached(self.histograms, loaded, dataset, [*tensors, *more], make)
        phases.lap("observation")
        result = choose(self, prepared, dataset, observation, chosen, values)
        result = listed.complete(replace(result, sizes=size_ranges(loaded, dataset)))
        phases.lap("ranges")
        title = f"{result.method} over {result.samples} samples of {dataset.name}"
        note(f"note: {result.samples:,} samples in {sum(phases.seconds.values()):.1f} s")
        with together():
            for check in checks:
                known = replace(check, dataset=dataset.fingerprint)
                known.write(output.with_suffix(".data-check.json"))
            document = result.write(output)
        self.present(document, lambda: _show(result, title), output)
        remember(output, model=loaded.path, data=self.data or settings.data)
        phases.lap("writing")
        if self.profile:
            show_profile(observation, prepared, dataset, phases, output)
        _advise(self, output)


command = Calibrate.command()


def _advise(options: Calibrate, output: Path) -> None:
    model = options.model or options.config.model
    if model is not None:
        skipped = [word for name in options.skipped for word in ("--skip-pass", name)]
        quantized = output.with_name(f"{model.stem}-int8.onnx")
        advise(options, "quantize", model, *skipped, "--calibration", output, "-o", quantized)


def _observe_options(options: Calibrate, checkpoint: Path) -> ObserveOptions:
    from trtcal.calibration import ObserveOptions

    settings, ceiling = options.config.calibration, options.max_memory
    return ObserveOptions(
        options.batch or settings.batch,
        workers=options.workers or (0 if options.cluster else settings.workers),
        cluster=options.cluster,
        max_memory=None if ceiling is None else size_in_bytes(ceiling),
        checkpoint=checkpoint,
    )


def _show(result: Calibration, title: str) -> None:
    if is_verbose():
        print_overview(result.overview(), title)
    else:
        say(title)
    say(result.clipping)
    every = ((name, _doubt(row, result.method)) for name, row in result.ranges.items())
    doubtful = {name: why for name, why in every if why}
    for name, reason in [*doubtful.items()][: most(NAMES_SHOWN)]:
        say(f"doubtful: {name}: {reason}")
    say_more(len(doubtful), most(NAMES_SHOWN), "doubtful ranges")
    say(*reasons(result.unranged), head="no range for ")


def _doubt(row: TensorRange, method: str) -> str | None:
    """Return why a range may be wrong, None if nothing says so; what `auto` chose is no doubt."""
    known = row.note or ""
    if what := known.partition("; ")[2] if method == "auto" else known:
        return what
    if row.amax < LEAST_COVERED * row.observed_amax:
        times = row.observed_amax / row.amax
        return f"its largest value is {times:.0f} times its range: check for outliers"
    if row.clipped > MOST_CLIPPED:
        return f"{row.clipped:.2%} of its values are clipped"
    return None


def show_profile(
    observation: Observation, model: Model, dataset: Dataset, phases: Phases, output: Path
) -> None:
    """Print where the time went, and write it beside the ranges."""
    from trtcal.calibration.profile import measure_limits

    if observation.profile is None:
        note("note: the histograms were kept from before, so there is no profile")
        return
    profile = measure_limits(observation.profile, model, dataset)
    phases.lap("this profile")
    profile = replace(profile, phases=phases.seconds)
    profile.write(output.with_suffix(".profile.json"))
    note(*profile.lines())
