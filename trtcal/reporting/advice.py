"""What to do after a verdict: the one thing that is worth doing next.

Chosen by what is known to help most in a minute of work: optimizations (`improve`), then mixed
precision (`search`), then more samples, then the device. What the run has tried is not advised again.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from trtcal.config import FILE, is_device
from trtcal.documents import Document
from trtcal.documents.streams import command_line
from trtcal.evaluate.search.limits import is_searched
from trtcal.formats import spelled
from trtcal.limits import DO_NOT, INCONCLUSIVE, UNDECIDED, Judgement
from trtcal.metrics import TIMES
from trtcal.ptq.improver import LEAST_SAMPLES
from trtcal.reporting.engines import formats_of, is_cpu
from trtcal.reporting.verdict import COMMAND

CUT = "trtcal prepare "
IMPROVE, SEARCH = "quantize", "search"
SEARCHED = 0.5  # of the samples, on which a plan is tested at least
NARROWER = 2  # times, with more rounds
Files = dict[str, str]


@dataclass(frozen=True)
class NextStep:
    """Why, and the command without `trtcal`, with the files of the run as they were given.

    There is no command for what only the user can do.
    """

    why: str
    words: tuple[str, ...] = ()

    @property
    def command(self) -> str:
        """The command, ready to paste, empty if there is none."""
        return command_line(*self.words) if self.words else ""


def next_step(document: Document) -> NextStep | None:
    """Return what a report's verdict calls for, None where the files of its run are not known."""
    verdict, files = document["measured"]["verdict"], run_files(document)
    if files is None or verdict["variant"] is None:
        return None
    if verdict["word"] == DO_NOT:
        return _after_a_loss(document, files)
    changes = document["measured"].get("against") or {}
    if changes.get("failing"):
        number, label = changes["run"]["number"], changes["run"]["label"]
        why = f"Compare the test data and the model with those of {label}"
        return NextStep(why, ("history", "show", str(number)))
    if cut := _cut(document, files):
        return cut
    variant = f"{files['folder']}/models/{verdict['variant']}.onnx"
    if verdict["word"] == INCONCLUSIVE:
        judged = list(map(Judgement.from_document, verdict["limits"]))
        rounds = ("compare", files["model"], variant, *config_of(files), "--rounds")
        step = _after_a_loss(document, files) or _more(judged, document, rounds)
        if step or not any(map(_is_time, judged)):
            return step
    other = next((pays["file"] for pays in verdict.get("pays", ()) if pays["file"]), None)
    variant = f"{files['folder']}/{other}" if other else variant
    gpus = (build["target"] for build in document["builds"] if not is_cpu(build))
    targets = [target for target in gpus if not is_device(target)]
    if not targets:
        words = ("ab", files["model"], variant, *config_of(files), *_on(device_of(document)))
        return NextStep("Check the limits in CI at each change", words)
    engine = ("--backend", "tensorrt", "--target", "gpu", "--layer-times")
    words = ("build", variant, *engine, "-o", f"{files['folder']}-gpu")
    what = "engine of FP16, which does as well," if other else "engine"
    why = f"Build the {what} and measure its speed on a machine with the GPU ({targets[0]})"
    return NextStep(why, words)


def _more(
    judged: Sequence[Judgement], document: Document, rounds: tuple[str, ...]
) -> NextStep | None:
    """Return how many more samples, or which command with more rounds, would narrow an interval."""
    if any(judgement.samples_needed for judgement in judged):
        return NextStep(f"Add samples to the test data: {more_samples(judged)}")
    variants = document["measured"]["variants"].values()
    times = [time for variant in variants for time in variant.get("times", ())]
    known, on = {time["target"].removeprefix("@") for time in times}, device_of(document)
    missing = (limit.limit.device for limit in judged if limit.figure is None)
    if device := next((device for device in missing if device and device[1:] not in known), ""):
        return NextStep(f"Measure the variants on {device}", (*rounds[:-1], *_on(device)))
    is_open = (limit.state == UNDECIDED and limit.figure for limit in judged if _is_time(limit))
    if (on or not times) and any(is_open):  # else they are estimates
        rounds = (*rounds[:-1], *_on(on), rounds[-1])
        runs = NARROWER**2 * max(variant["latency"]["runs"] for variant in variants)
        why = f"Measure {runs} rounds on an idle machine: intervals about {NARROWER} times narrower"
        return NextStep(why, (*rounds, str(runs)))
    return None


def device_of(document: Document) -> str:
    """Return the device that the variants of a report were timed on, empty for this machine."""
    variants = document["measured"]["variants"].values()
    return next((variant["latency"].get("on", "") for variant in variants), "")


def _on(device: str) -> tuple[str, ...]:
    return ("--on", device[1:]) if device else ()


def _is_time(judgement: Judgement) -> bool:
    return judgement.limit.about.of == TIMES


def more_samples(judged: Sequence[Judgement]) -> str:
    """Return how many samples in all would settle limits, and how much narrower intervals get."""
    last = max(judged, key=lambda judgement: judgement.samples_needed or 0)
    needed, seen = last.samples_needed or 0, (last.figure and last.figure.samples) or 1
    times = math.sqrt(needed / seen)
    more = f"about {needed - seen:,} more samples would settle it, {needed:,} in total"
    return f"{more}, with an interval {times:.2g} times narrower"


def finding_layers(document: Document) -> str | None:
    """Return the command that finds the layers to leave in float, None where files are not known."""
    files = run_files(document)
    ranges = _ranges(document, files) if files else None
    judged = list(map(Judgement.from_document, document["measured"]["verdict"]["limits"]))
    if files is None or ranges is None:
        return None
    return _search(document, files, ranges, judged).command


def measuring_layers(document: Document) -> str | None:
    """Return the command that measures what each layer costs the outputs, in INT8 alone."""
    files = run_files(document) if formats_of(document) <= {"int8"} else None
    ranges = _ranges(document, files) if files else None
    if files is None or ranges is None:
        return None
    output = f"{files['folder']}/sensitivity.json"
    return NextStep("", ("sensitivity", *ranges, *config_of(files), "-o", output)).command


def run_files(document: Document) -> Files | None:
    """Return a run's model, configuration and folder, from where its command was given."""
    run: Document = document["measured"]["run"] or {}
    files: Files | None = run.get("measured", {}).get("files")
    return files


def config_of(files: Files) -> tuple[str, ...]:
    """Return the option that names the configuration, none for the one that is taken by itself."""
    return () if files["config"] == FILE else ("--config", files["config"])


def plan_of(document: Document, folder: str) -> tuple[str, ...]:
    """Return the option that names the plan of the verdict's variant, none for all in INT8."""
    plan = f"plans/{document['measured']['verdict']['variant']}.json"
    stages = (document["measured"]["run"] or {}).get("stages", ())
    is_written = any(stage["output"] == plan for stage in stages)
    return ("--plan", f"{folder}/{plan}") if is_written else ()


def origin_of(document: Document) -> tuple[Document, Document | None]:
    """Return what made the variant of the verdict: its `quantization`, its record of optimizations."""
    name = document["measured"]["verdict"]["variant"]
    rows = (document["comparison"] or {"rows": []})["rows"]
    quantization: Document = next((row["quantization"] for row in rows if row["name"] == name), {})
    records = (record for record in document["optimizations"] if name in record["variants"])
    return quantization, next(records, None)


def _ranges(document: Document, files: Files) -> tuple[str, ...] | None:
    """Return the options that name the ranges, and optimizations, of the variant of the verdict."""
    quantization, optimized = origin_of(document)
    stages = document["measured"]["run"].get("stages", ())
    written = {stage["digest"]: f"{files['folder']}/{stage['output']}" for stage in stages}
    changes = optimized["optimizations"] if optimized else None
    options = {"--calibration": quantization.get("calibration"), "--optimizations": changes}
    if options["--calibration"] not in written:
        return None
    return tuple(word for name, sha in options.items() if sha for word in (name, written[sha]))


def _after_a_loss(document: Document, files: Files) -> NextStep | None:
    """Return what makes a variant more accurate, if that is what a limit misses."""
    judged = list(map(Judgement.from_document, document["measured"]["verdict"]["limits"]))
    step, ranges = what_helps(judged, bool(document["optimizations"])), _ranges(document, files)
    if ranges is None or step is None:
        return None
    formats = formats_of(document)
    if step == IMPROVE:
        if min(table["samples"] for table in document["calibrations"]) < LEAST_SAMPLES:
            return None
        loss = f"the loss of {spelled(formats or {'int8'})}"
        why = f"Reduce {loss} without training (ranges, biases, rounding of weights)"
        if formats <= {"int8"} and not plan_of(document, files["folder"]):
            return NextStep(why, ("run", files["config"], "--improve", "fast"))
        output = f"{Path(files['model']).stem}-improved.onnx"
        subject = (files["model"], *config_of(files), *plan_of(document, files["folder"]))
        return NextStep(why, (step, *subject, "--improve", "fast", "-o", output))
    return _search(document, files, ranges, judged)


def _search(
    document: Document, files: Files, ranges: tuple[str, ...], judged: Sequence[Judgement]
) -> NextStep:
    formats = formats_of(document)
    choice = () if formats <= {"int8"} else ("--precisions", ",".join(sorted({"int8", *formats})))
    words = (SEARCH, *ranges, *config_of(files), *choice, *searched(judged), "-o", "search")
    return NextStep("Find the few layers to leave in float", words)


def what_helps(judged: Iterable[Judgement], is_improved: bool) -> str | None:
    """Return the command that helps a variant that misses limits: optimizations, then the search."""
    share = SEARCHED if is_improved else 1.0
    helps = any(judgement.may_improve(share) for judgement in judged)
    return (SEARCH if is_improved else IMPROVE) if helps else None


def searched(judged: Iterable[Judgement]) -> list[str]:
    """Return the options of `trtcal search` for the limits that it takes, without suggested ones."""
    limits = [judgement.limit for judgement in judged if not judgement.is_suggested]
    return [word for limit in limits if is_searched(limit) for word in ("--limit", limit.plain)]


def _cut(document: Document, files: Files) -> NextStep | None:
    reference = f"{document['comparison']['rows'][0]['name']} for "
    failed = document["measured"]["failed_builds"].items()
    for why in (why for what, why in failed if what.startswith(reference)):
        for command in COMMAND.findall(why):
            if command.startswith(f"`{CUT}"):
                _, prepare, _, *rest = shlex.split(command.strip("`"))
                words = (prepare, files["model"], *rest)
                return NextStep("Cut off the nodes that the target cannot run", words)
    return None
