"""A whole run in which every name, path and message is a text that somebody else chose."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from hypothesis import strategies as st

from tests.reporting.samples import accuracy, comparison, improvement, latency, write_improvement
from trtcal.documents import digest_file, write_document
from trtcal.evaluate.comparison import Row
from trtcal.evidence.diagnosis.build_diagnosis import Diagnosis, Suppression, write_diagnosis
from trtcal.evidence.findings import Evidence, Finding
from trtcal.evidence.layers.layer import Layer, TensorInfo
from trtcal.evidence.layers.outcomes import Outcome
from trtcal.evidence.manifest import Build
from trtcal.model import TensorSpec
from trtcal.model.work import NodeWork, Work
from trtcal.quantization.coverage import cover
from trtcal.quantization.plan import Plan, Rule, write_plan
from trtcal.ranges import Calibration, TensorRange

NASTY = (
    "<script>alert(1)</script>",
    "</script><script>alert(1)</script>",
    "</style><img src=x onerror=alert(1)>",
    "</title><b>",
    "<svg onload=alert(1)>",
    "]]><!-- -->",
    "\" onmouseover=\"alert(1)' x='",
    "javascript:alert(1)",
    "https://example.org/?a=1&amp;b",
    "\x1b[31mred\x1b]0;title\x07\x1b[2J",
    "\x9b2J\x00\x7f\x85",
    "[/red][bold]:smile:[link=x]",
    "\u202etxt.exe\u2066\u200f\u200b\ufeff",
    "\n\r\n[11/21/2026-05:00:00] [E] forged\u2028\u2029\x0b",
    "{{ 7 * 7 }}{% raw %}",
    "$x^2$ \\frac{1}",
    "&lt;&#0;&",
    "\ud800\udfff",
    "../../etc/passwd",
    "-rf",
    "' OR 1=1; --",
    "数字" * 5,
    "e\u0301" * 9,
)
WORDS = st.one_of(st.sampled_from(NASTY), st.text(max_size=20))
TEXTS = st.lists(st.lists(WORDS, min_size=1, max_size=3).map("".join), min_size=1, max_size=6)
"""What names, paths and messages are drawn from: they are used in turn."""

NOT_IN_A_LINE = str.maketrans("", "", "\n\r")
LONGEST_FILE_NAME = 60


@dataclass
class Names:
    """Gives one text after the other, each made unlike all others by a number at its end."""

    texts: Sequence[str]
    _count: itertools.count = field(default_factory=itertools.count)

    def __call__(self) -> str:
        number = next(self._count)
        return f"{self.texts[number % len(self.texts)]}{number}"

    def line(self) -> str:
        """Return a text that a log has on one line."""
        return self().translate(NOT_IN_A_LINE)

    def file(self) -> str:
        """Return a text that is a file's name here."""
        text = self().replace("/", "_").replace("\0", "_")
        short = text.encode("utf-8", "replace")[-LONGEST_FILE_NAME:]
        return "b" + short.decode("utf-8", "replace")


def write_hostile_run(parent: Path, texts: Sequence[str]) -> Path:
    """Write a run folder into `parent`, with the same documents and rows whatever the texts are."""
    name = Names(texts)
    folder = parent / name.file()
    rows = [_row(name, 0.2), _row(name, 6.0)]
    ranges = write_improvement(folder, _improvement(name))
    rows[0] = replace(rows[0], quantization={"method": name(), "calibration": ranges.digest})
    compared = comparison(*rows, reference=name())
    compared = replace(compared, dataset_name=name(), dataset=name(), machine={name(): name()})
    compared.write(folder / "comparison.json")
    for row in rows:
        place = folder / "builds" / name.file()
        _write_build(place, name, row)
        write_diagnosis(place, _diagnosis(name))
    failed = folder / name.file()
    failed.mkdir()
    (failed / "build.log").write_bytes(_log(name))
    _calibration(name).write(folder / "calibration.json")
    write_plan(folder / "plan.json", _plan(name))
    write_document(folder / "run.json", _run(name))
    return folder


def _row(name: Names, drop: float) -> Row:
    quantization = {"method": name(), "calibration": name(), "plan": name()}
    figures = accuracy(round(20 * drop) + 5, 5)
    return Row(name(), name(), quantization, figures, latency(1.0 + drop), 40_000)


def _write_build(place: Path, name: Names, row: Row) -> None:
    place.mkdir(parents=True)
    (place / "build.log").write_bytes(_log(name))
    (place / "engine.plan").write_bytes(b"an engine")
    digests = {
        "log_digest": digest_file(place / "build.log"),
        "engine_digest": digest_file(place / "engine.plan"),
    }
    measured = {"engine_bytes": 9, **digests}
    write_document(place / "build.json", _build(place, name, row, measured).to_document())


def _build(place: Path, name: Names, row: Row, measured: dict[str, object]) -> Build:
    return Build(
        folder=place,
        backend=name(),
        backend_version=name(),
        target=name(),
        model=row.model,
        model_name=row.name,
        layers=(_layer(name, "conv"), _layer(name, name())),
        outcomes=(
            Outcome(name(), "int8", "int8", name()),
            Outcome(name(), "int8", "fp32", name(), name(), name()),
            Outcome(name(), "int8", "unknown", None, name(), name()),
        ),
        skipped={name(): name()},
        quantization={"method": name()},
        engine_file="engine.plan",
        measured=measured,
        inputs=(TensorSpec(name(), "float32", ("N", 3)),),
        coverage=cover(
            Work(
                (
                    NodeWork(name(), "Conv", 30, 1, name()),
                    NodeWork(name(), name(), 60, 1, name(), name()),
                    NodeWork(name(), name(), 10, 1, name()),
                    NodeWork(name(), name(), None, 1, name()),
                ),
                {name(): (1, 3)},
                (name(), name()),
            ),
            {},
            {},
            is_built=True,
        ),
        plugins=(name(),),
        gpu=name(),
        options={name(): name()},
        command=name(),
    )


def _layer(name: Names, kind: str) -> Layer:
    tensor = TensorInfo(name(), "int8", (1, 8), name())
    return Layer(
        *(name(), kind, (tensor,), (tensor,)), tactic=name(), nodes=(name(),), origin=name()
    )


def _diagnosis(name: Names) -> Diagnosis:
    def finding() -> Finding:
        evidence = (
            Evidence("log", name(), f"{name()}\n{name()}"),
            Evidence("node", name(), name()),
        )
        return Finding(name(), name(), name(), name(), name(), evidence)

    accepted = Suppression(name(), name(), name())
    return Diagnosis((finding(), finding()), ((finding(), accepted),), notes={name(): 1})


def _log(name: Names) -> bytes:
    lines = (
        f"[W] [TRT] Missing scale and zero-point for tensor {name.line()}, expect fall back",
        f"[E] [TRT] of {name.line()}",  # right behind its prefix a text could be another one
        f"[W] [TRT] of {name.line()}",
    )
    text = "".join(f"[11/21/2026-05:00:00] {line}\n" for line in lines)
    return text.encode("utf-8", "surrogatepass")


def _calibration(name: Names) -> Calibration:
    return Calibration(
        *(name(), {name(): name()}, name(), name(), 128, name()),
        ranges={name(): TensorRange(2.0, 3.0, 0.001, name())},
        unranged={name(): name()},
    )


def _improvement(name: Names) -> dict[str, object]:
    tries = [{**one, "name": name(), "what": name()} for one in improvement()["tries"]]
    layers = [{"name": name(), "weights": 9, "rounded": 1, "bias": 0.5}]
    shown = {"effort": name(), "objective": name(), "untried": [name()], "warnings": [name()]}
    return improvement(tries=tries, layers=layers, optimizations=name(), model=name(), **shown)


def _plan(name: Names) -> Plan:
    rule = Rule("fp16", name(), reason=name(), optional=True)
    return Plan("int8", {name(): "fp32"}, (rule,))


def _run(name: Names) -> dict[str, object]:
    stages = [{"stage": name(), "output": name(), "digest": name()}]
    noted = {"machine": {name(): name()}, "packages": {name(): name()}}
    return {
        "kind": "run",
        "schema_version": 1,
        "command": name(),
        "stages": stages,
        "missing_builds": {name(): name()},
        "measured": noted,
    }
