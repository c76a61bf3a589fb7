"""`trtcal run`, to be read from top to bottom: what it does, in the order of the data flow."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from trtcal import documents
from trtcal.backends.options import BuildOptions, with_sizes, write_range
from trtcal.calibration import calibrate
from trtcal.config import FILE, Config, script_in
from trtcal.data import size_ranges
from trtcal.data.issues import DataCheck, DataIssue
from trtcal.documents import FILES, Document, write_text
from trtcal.documents.overview import NEUTRAL, Overview, Shown
from trtcal.errors import __version__
from trtcal.evaluate.replay import Reporter, silent
from trtcal.extensions import PAGES, entry_points
from trtcal.limits import TONES, Judgement, judge_counts
from trtcal.model import load_model
from trtcal.model.loaders import source_of
from trtcal.pipeline import stages
from trtcal.pipeline.inputs import Inputs, open_inputs
from trtcal.pipeline.journal import Journal, Say
from trtcal.reporting.render import write_page
from trtcal.runs.follower import follower_kinds, followers_of
from trtcal.runs.history import History
from trtcal.runs.origin import Configuration, Measured, Origin, check_replaceable
from trtcal.runs.redaction import redact_run
from trtcal.runs.settings import SCRIPTS, SETTINGS, to_table, write_settings

OUTPUTS = (
    *("builds", "calibrations", "models", "plans", "optimizations", SCRIPTS),
    *(
        stages.COMPARISON,
        stages.DATA_CHECK,
        "histograms.npz",
        "tails.json",
        "run.json",
        SETTINGS,
        FILE,
    ),
    *("report.html", "report.json", FILES),
)
"""Everything that a run writes at the top of its folder, besides what its followers write."""

Warn = Callable[[DataCheck], None]
"""Called with the check of the calibration data, before they are observed."""


@dataclass(frozen=True)
class Verdict(Shown):
    """The word of a report, the sentence with its numbers, the variant, and the warnings."""

    word: str
    sentence: str
    variant: str | None
    reasons: tuple[str, ...]

    def overview(self, page: Path | None = None) -> Overview:
        """Return the answer and the warnings; `page` is the report."""
        tone = TONES.get(self.word, NEUTRAL)
        return Overview(f"{self.word}: {self.sentence}", self.reasons, page=page, tone=tone)


@dataclass(frozen=True)
class RunResult(Shown):
    """The folder of a run, its report, failed builds, and the judged limits on builds and data.

    `issues` are those of the calibration data.

    >>> result = run("samples/digits/trtcal.toml")  # doctest: +SKIP
    >>> result.verdict.word  # doctest: +SKIP
    'SHIP WITH CARE'
    """

    folder: Path
    report: Document
    missing_builds: dict[str, str]
    limits: tuple[Judgement, ...] = ()
    issues: tuple[DataIssue, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """The word of the report with its sentence."""
        return documents.from_fields(Verdict, self.report["measured"]["verdict"])

    def overview(self) -> Overview:
        """Return the verdict, and builds that are missing, with a link to the report."""
        view = self.verdict.overview(self.folder / "report.html")
        missing = (f"no build {name}: {why}" for name, why in self.missing_builds.items())
        return replace(view, facts=(*missing, *view.facts))


def run(
    config: Config,
    command: str = "trtcal run",
    reporter: Reporter = silent,
    say: Say = lambda message: None,
    history: History | None = None,
    warn: Warn = lambda check: None,
    guessed: str | None = None,
) -> RunResult:
    """Do everything that `config` says, then put it into the run folder in place of an older run.

    The report is held against the last run of the same model in `history`, to which nothing is added.
    Files there that no run wrote are kept; `guessed`, the text of a `trtcal.toml` that nobody wrote, is
    put there too. `InputError` if the configuration lacks a model or data,
    or the folder holds something else than a run.
    """
    folder = config.run_folder
    check_replaceable(folder)
    followers = followers_of(config)
    inputs = open_inputs(config, say, followers=followers)
    origin = _origin(inputs, guessed is None)
    with documents.resuming_entries(folder, all_outputs(), _key(origin, config)) as place:
        write_settings(place, config, folder)
        reads = inputs.calibration_data.reads
        journal = Journal(place, origin, reporter, say, [], followers, reads)
        if journal.done:
            say(f"continues the run in {place}, which has {len(journal.done)} results")
        if guessed is None and config.path.absolute() == (folder / FILE).absolute():
            guessed = config.path.read_text(encoding="utf-8")
        if guessed is not None:
            write_text(journal.folder / FILE, guessed)
        for follower in followers:
            follower.start(folder, place)
            follower.see_prepared(inputs.preparation)
        check = stages.checked_data(inputs, journal)
        warn(check)
        counts = {"data_issues": len(check.issues)}
        journal.limits += judge_counts(config.limits, counts, "calibration data")
        report = run_stages(inputs, journal, command, history)
        report = redact_run(place) if config.report.redact else report
    return RunResult(
        folder, report, journal.origin.missing_builds, tuple(journal.limits), check.issues
    )


def run_stages(inputs: Inputs, journal: Journal, command: str, history: History | None) -> Document:
    """Do all stages and return the report's document."""
    observation = stages.observe_tensors(inputs, journal)
    peaks = stages.find_peaks(inputs, inputs.prepared, journal) if inputs.asks_fp16 else {}
    calibrations = stages.calibrate_all(observation, inputs, journal, peaks)
    clipped = [*calibrations.values(), calibrate(observation, "percentile")]
    stages.record_tails(inputs, clipped, observation, journal)
    variants = stages.quantize_all(inputs, calibrations, journal)
    models = [*map(load_model, variants)]
    sizes = size_ranges(inputs.model, inputs.calibration_data)
    shapes = with_sizes(BuildOptions(""), inputs.model, sizes).shapes
    for name in set(shapes) - set(inputs.config.build.shapes):
        journal.say(f"shapes of {name}, taken from the data: {write_range(shapes[name])}")
    stages.build_all([inputs.model, *models], inputs, journal, sizes)
    comparison = stages.compare_all(inputs, variants, models, journal, sizes)
    if improved := stages.improve_short(inputs, comparison, journal):
        optimized = [*map(load_model, improved)]
        stages.build_all(optimized, inputs, journal, sizes)
        joined = stages.compare_all(inputs, improved, optimized, journal, sizes)
        comparison, models = comparison.joined(joined), [*models, *optimized]
    comparison = stages.compare_tensors(inputs, models, comparison, journal)
    stages.record_comparison(inputs, [*variants, *improved], comparison, journal)
    stages.write_followers(journal)
    journal.origin.data_reads = [*map(documents.to_fields, inputs.calibration_data.summary())]
    journal.origin.write(journal.folder, command)
    with journal.step("report", "report.json") as record:
        document = stages.report_document(journal, inputs.config, history)
        page = journal.folder / "report.html"
        record(str(write_page(page, document, journal.folder)["digest"]))
    journal.origin.write(journal.folder, command)
    return document


def all_outputs() -> tuple[str, ...]:
    """Return everything that a run writes at the top of its folder."""
    pages = (f"{name}.html" for name in entry_points(PAGES))
    return (*OUTPUTS, *pages, *(name for kind in follower_kinds() for name in kind.outputs))


def _key(origin: Origin, config: Config) -> str:
    """Return the digest of all that a run depends on: settings, model, data, scripts, packages."""
    data = (origin.model, origin.calibration_data, origin.evaluation_data, origin.scripts)
    packages = {**origin.measured.packages, "trtcal": __version__}
    table = to_table(config, config.run_folder)
    return documents.digest_bytes(documents.canonical_json([table, *data, packages]))


def _origin(inputs: Inputs, is_configured: bool) -> Origin:
    """Return what a run starts from; `is_configured` says that somebody wrote its `trtcal.toml`."""
    config, model = inputs.config, inputs.model
    paths = {"model": model.path, "config": config.path, "folder": config.run_folder}
    if model.source is not None:
        paths["source"] = model.source
    files = {name: Path(os.path.relpath(path)).as_posix() for name, path in paths.items()}
    scripts = {key: script_in(path) or (path,) for key, path in config.scripts.items()}
    configuration = Configuration.of(config.path) if is_configured else Configuration()
    return Origin(
        model.fingerprint,
        *(inputs.calibration_data.fingerprint, inputs.evaluation_data.fingerprint),
        scripts={key: documents.digest_file(file) for key, (file, *_) in scripts.items()},
        cost=config.cost.to_document(),
        source=source_of(model.proto),
        measured=Measured(files, configuration),
    )
