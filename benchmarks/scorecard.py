"""Right, missed and false findings of `trtcal` on inputs whose answers are known: docs/scorecard.md.

    python -m benchmarks.scorecard [--write]

Logs are those of `benchmarks/labelled_logs`: behind two tabs of a line stand `#`, its category and
subject; `|` joins categories that are both right, `?` marks lines that count neither way, `!` the
cause of a failure; the file's name ends in the result. For `diagnose` one fault is planted in each
of several quantized networks, for `check-data` one in the data of the samples' models. For fusions
TensorRT-RTX gives the answer, where it is installed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from benchmarks import fusion, input_checks
from tests.evidence.fusion.graphs import GRAPHS
from tests.fixtures import trained
from tests.fixtures.zoo import ZOO
from trtcal.calibration import calibrate, observe
from trtcal.check.data_check import check_data
from trtcal.check.preprocessing import forms_of
from trtcal.check.samples import ImageInput
from trtcal.config import Config
from trtcal.data import open_dataset
from trtcal.evidence.diagnosis.build_diagnosis import check_engine
from trtcal.evidence.findings import COSTS_ALONE
from trtcal.evidence.layers.reading import Engine
from trtcal.evidence.log.summary import log_document
from trtcal.model import Model, load_model
from trtcal.quantization import find_layers, prepare, quantize, tensors_to_observe, write_quantized
from trtcal.stats import proportion

ROOT = Path(__file__).parents[1]
LOGS, PAGE, SAMPLES = (
    ROOT / "benchmarks/labelled_logs",
    ROOT / "docs/scorecard.md",
    ROOT / "samples",
)
BACKGROUND = {"memory", "timing", "calibration_progress"}
SUBSETS = 3
FEW = 10  # inputs with a kind, below which its figures say little


@dataclass
class Score:
    """How many findings of one kind are right, missed and false."""

    right: int = 0
    missed: int = 0
    false: int = 0

    def row(self) -> str:
        """Return the cells: counts, recall and precision with their 95 % intervals."""
        counts = f"{self.right} | {self.missed} | {self.false}"
        return f"{counts} | {self._share(self.missed)} | {self._share(self.false)}"

    def _share(self, wrong: int) -> str:
        total = self.right + wrong
        if not total:
            return "no input"
        interval = proportion(self.right, total)
        few = ", too few" if total < FEW else ""
        return f"{self.right / total:.0%} ({interval.low:.0%} to {interval.high:.0%}{few})"


Card = defaultdict[str, Score]


def labels_of(path: Path) -> Iterator[tuple[str, str]]:
    """Yield each line of a labelled log and its label."""
    for line in path.read_text(encoding="utf-8").splitlines():
        text, _, label = line.partition("\t\t#")
        yield text, label.strip()


def score_log(path: Path, folder: Path, card: Card) -> None:
    """Count one log's events by category, its cause and its result."""
    lines = list(labels_of(path))
    bare = folder / "build.log"
    bare.write_text("".join(f"{text}\n" for text, _ in lines), encoding="utf-8")
    document = log_document(bare)
    events = defaultdict(list)
    for event in document["events"]:
        events[event["line"]].append(event)
    for number, (_, label) in enumerate(lines, 1):
        _score_line(label, events[number], card)
    summary, result = document["summary"], path.stem.rpartition(".")[2]
    cause = [number for number, (_, label) in enumerate(lines, 1) if label.endswith("!")]
    if cause:
        first = summary["findings"][0]["first_line"] if summary["findings"] else None
        _count(card["the cause comes first"], first in cause, is_named=bool(summary["findings"]))
    if result == "failed" or summary["result"] == "failed":
        score = card["the build failed"]
        _count(score, result == summary["result"], is_named=summary["result"] == "failed")


def _count(score: Score, is_right: bool, is_named: bool) -> None:
    score.right += is_right
    score.missed += not is_right and not is_named
    score.false += not is_right and is_named


def _score_line(label: str, events: list[dict[str, str]], card: Card) -> None:
    is_open = "?" in label
    words, _, subject = label.replace("?", "").removesuffix("!").strip().partition(" ")
    categories = [word for word in words.split("|") if word not in ("", "build")]
    named = [event for event in events if event["category"] in categories]
    if categories and not is_open:
        _count(card[categories[0]], bool(named), is_named=False)
        if subject and named:
            _count(card["subject"], named[0].get("subject") == subject, is_named=True)
    for event in events if not is_open else ():
        is_extra = event["category"] not in (*categories, *BACKGROUND) and words != "build"
        card[event["category"]].false += is_extra


def logs() -> Card:
    """Score `trtcal log`."""
    card: Card = defaultdict(Score)
    with tempfile.TemporaryDirectory() as folder:
        for path in sorted(LOGS.glob("*.log")):
            score_log(path, Path(folder), card)
    return card


def _initializer(proto: onnx.ModelProto, name: str, values: np.ndarray) -> None:
    (stored,) = (item for item in proto.graph.initializer if item.name == name)
    stored.CopyFrom(numpy_helper.from_array(values, name))


def _weight(proto: onnx.ModelProto) -> tuple[onnx.NodeProto, onnx.NodeProto]:
    """Return a Conv of the graph and the DequantizeLinear of its weight."""
    by_output = {name: node for node in proto.graph.node for name in node.output}
    convs = [node for node in proto.graph.node if node.op_type == "Conv"]
    conv = next(node for node in convs if by_output[node.input[1]].op_type == "DequantizeLinear")
    return conv, by_output[conv.input[1]]


def _has_conv(proto: onnx.ModelProto) -> bool:
    """Whether the first Conv with an INT8 weight has several input channels, and scales in FP32."""
    try:
        weight, scale = (_constant(proto, name) for name in _weight(proto)[1].input[:2])
        return weight.shape[1] > 1 and scale.dtype == np.float32
    except (StopIteration, KeyError):
        return False


def _constant(proto: onnx.ModelProto, name: str) -> np.ndarray:
    return next(numpy_helper.to_array(t) for t in proto.graph.initializer if t.name == name)


def denormal_scale(proto: onnx.ModelProto) -> None:
    """Make the scale of one output channel denormal: `load_model` refuses zero."""
    scale = _weight(proto)[1].input[1]
    values = _constant(proto, scale).copy()
    values.flat[0] = 1e-40
    _initializer(proto, scale, values)


def asymmetric(proto: onnx.ModelProto) -> None:
    """Give a weight a zero point of 3."""
    points = _weight(proto)[1].input[2]
    _initializer(proto, points, np.full_like(_constant(proto, points), 3))


def turned(proto: onnx.ModelProto) -> None:
    """Put a weight's scales on the axis of its input channels."""
    _, dequantizer = _weight(proto)
    channels = _constant(proto, dequantizer.input[0]).shape[1]
    for name in dequantizer.input[1:]:
        _initializer(proto, name, np.resize(_constant(proto, name), channels))
    (axis,) = (item for item in dequantizer.attribute if item.name == "axis")
    axis.i = 1


def integer_bias(proto: onnx.ModelProto) -> None:
    """Quantize a bias to int32, as ONNX Runtime's quantizer does."""
    conv, _ = _weight(proto)
    channels = len(_constant(proto, conv.input[2])) if len(conv.input) > 2 else 8
    arrays = (np.arange(channels, dtype=np.int32), np.float32(0.001), np.int32(0))
    for name, values in zip(("bias_q", "bias_scale", "bias_zero"), arrays, strict=True):
        proto.graph.initializer.append(numpy_helper.from_array(np.asarray(values), name))
    names = ["bias_q", "bias_scale", "bias_zero"]
    node = onnx.helper.make_node("DequantizeLinear", names, ["bias_dq"], "bias_dq")
    del conv.input[2:]
    conv.input.append("bias_dq")
    proto.graph.node.insert(0, node)


def between(proto: onnx.ModelProto) -> None:
    """Put a Sigmoid between a Conv and its activation's Q/DQ."""
    conv, _ = _weight(proto)
    node = onnx.helper.make_node("Sigmoid", [conv.input[0]], ["between"], "between")
    conv.input[0] = "between"
    proto.graph.node.insert(list(proto.graph.node).index(conv), node)


def float_weight(proto: onnx.ModelProto) -> None:
    """Leave a weight in float."""
    conv, dequantizer = _weight(proto)
    values = _constant(proto, dequantizer.input[0]).astype(np.float32)
    proto.graph.initializer.append(numpy_helper.from_array(values * 0.01, "float_weight"))
    conv.input[1] = "float_weight"


FAULTS: dict[str, Callable[[onnx.ModelProto], None]] = {
    "bad_scale": denormal_scale,
    "zero_point": asymmetric,
    "wrong_axis": turned,
    "quantized_bias": integer_bias,
    "not_adjacent": between,
    "one_sided": float_weight,
}


def quantized(name: str, folder: Path) -> Model:
    """Calibrate and quantize a network of the zoo."""
    net = ZOO[name].make()
    onnx.save(net.proto(), folder / "float.onnx")
    np.savez(folder / "data.npz", **net.samples(16))
    model = prepare(load_model(folder / "float.onnx"))
    data = open_dataset(folder / "data.npz", model)
    seen = observe(model, data, tensors_to_observe(find_layers(model)))
    write_quantized(folder / "int8.onnx", quantize(model, calibrate(seen, "minmax")))
    return load_model(folder / "int8.onnx")


def diagnoses() -> Card:
    """Score `trtcal diagnose` of graphs with one planted fault, and without one."""
    card: Card = defaultdict(Score)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for network in sorted(ZOO):
            proto = quantized(network, folder).proto
            if not _has_conv(proto):
                continue
            for kind, plant in (("", None), *FAULTS.items()):
                spoiled = onnx.ModelProto()
                spoiled.CopyFrom(proto)
                if plant:
                    plant(spoiled)
                onnx.save(spoiled, folder / "spoiled.onnx")
                model = load_model(folder / "spoiled.onnx")
                kinds = check_engine(Engine("no layers", ()), Config(folder), (), model).findings
                _score_kinds({f.kind for f in kinds} - COSTS_ALONE, {kind} - {""}, card)
    return card


def _score_kinds(named: Iterable[str], right: set[str], card: Card) -> None:
    """Count the kinds named of an input that has a fault, which may have several names, or none."""
    named = set(named)
    if right:
        kind = next(iter(sorted(named & right) or sorted(right)))
        _count(card[kind], bool(named & right), is_named=False)
    for kind in named - right:
        card[kind].false += 1


def data_checks() -> Card:
    """Score `trtcal check-data` on models that work: two samples, and one of colour images."""
    card: Card = defaultdict(Score)
    for sample in ("classifier", "digits"):
        model = load_model(SAMPLES / sample / f"{sample}.onnx")
        _score_data(model, dict(np.load(SAMPLES / sample / "test.npz")), card)
    with tempfile.TemporaryDirectory() as folder:
        images, labels = trained.pictures(np.random.default_rng(3), 256)
        model = load_model(trained.classifier(Path(folder) / "colour.onnx"))
        _score_data(model, {"x": images, "labels": labels}, card)
    return card


def _score_data(model: Model, stored: dict[str, np.ndarray], card: Card) -> None:
    images = ImageInput.of(model)
    if images is None:
        raise SystemExit(f"{model.path} has no image input")
    planes = images.planes(stored[images.name])
    rng = np.random.default_rng(0)
    for _ in range(SUBSETS):
        rows = np.sort(rng.choice(len(planes), 64, replace=False))
        labels = stored["labels"][rows].astype(np.int64)
        form = forms_of(planes[:64])[0]
        for _, data, kinds in input_checks.trials(images, form, planes[rows], labels, rng):
            named = {issue.kind for issue in check_data(model, data).issues}
            _score_kinds(named, kinds, card)


def fusions() -> Card:
    """Score which fusions break, by what TensorRT-RTX builds; nothing without it."""
    card: Card = defaultdict(Score)
    if not fusion.BACKEND.availability().works:
        return card
    with tempfile.TemporaryDirectory() as folder:
        for name, graph in GRAPHS.items():
            place = Path(folder) / name
            place.mkdir()
            found = fusion.check(graph.save(place), "sm89", place / "build")
            for match, seen in zip(found.matches, found.seen, strict=True):
                is_broken = len(seen.layers) > 1
                if seen.layers and (match.breakers or is_broken):
                    score = card[match.pattern]
                    _count(score, bool(match.breakers) and is_broken, is_named=bool(match.breakers))
    return card


SECTIONS: dict[str, tuple[Callable[[], Card], str]] = {
    "trtcal log": (
        logs,
        "Lines of build logs written for this page, by category; `subject` is the name of a tensor or "
        "layer that a line is about.",
    ),
    "trtcal diagnose": (
        diagnoses,
        "Faults planted in quantized networks, by kind; the networks without a fault have no finding.",
    ),
    "trtcal check-data": (
        data_checks,
        "Faults planted in the data of three models, by kind; the right data have no finding.",
    ),
    "trtcal layers fusions": (
        fusions,
        "Fusions that something in the graph breaks, by pattern. The layers that TensorRT-RTX makes "
        "give the answer: one for a whole pattern, several for a broken one.",
    ),
}
HEAD = """\
# Scorecard

What trtcal says, on inputs whose answers are known: `python -m benchmarks.scorecard --write` makes this
page. The project wrote the inputs, so they show what is covered rather than how your inputs will go.
*Right* findings name what is there, *missed* ones are absent, *false* ones name what is not there.
Recall is right / (right + missed), precision is right / (right + false), each with its 95 % interval
(Clopper-Pearson). With fewer than {few} inputs a share says little, and is marked so.
"""
COLUMNS = "kind | right | missed | false | recall | precision"


def page(*commands: str) -> Iterator[str]:
    """Yield the parts of the page: what it is, and the table of each command."""
    yield HEAD.format(few=FEW)
    for command in commands:
        score, text = SECTIONS[command]
        yield f"## {command}\n\n{text}\n\n{table(score())}"


def table(card: Card) -> str:
    """Return a card as a table of Markdown, or what is missing for it."""
    if not card:
        return "TensorRT-RTX is not installed here.\n"
    total = Score(*(sum(column) for column in zip(*map(_counts, card.values()), strict=True)))
    rows = "".join(f"| {kind} | {card[kind].row()} |\n" for kind in sorted(card))
    return f"| {COLUMNS} |\n|---|---:|---:|---:|---|---|\n{rows}| all | {total.row()} |\n"


def _counts(score: Score) -> tuple[int, int, int]:
    return score.right, score.missed, score.false


def main() -> None:
    """Print the page, or write it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    text = "\n".join(page(*SECTIONS))
    if parser.parse_args().write:
        PAGE.write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    main()
