"""What the compiler makes of FP8, INT4 and NVFP4: asked, got and why not, by graph and target.

    python -m benchmarks.precisions [--targets sm86,sm89] [--formats fp8,int4] [name ...]

Takes every graph of the tests' zoo, and wider ones whose matrices hold whole blocks of 128 weights,
through trtcal's calibration, `quantize` and `build` with TensorRT-RTX. Prints one line a graph and
format: the nodes that multiply, those asked in the format, and for each target how many run in which
type by the engine's own layer list, or `refused` where the builder wrote no engine. Then every reason,
the most frequent first. Graphs of which no node can be asked are counted in the last lines alone.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from multiprocessing import get_context
from pathlib import Path

from tests.fixtures.zoo import ZOO
from tests.fixtures.zoo_language import encoder
from tests.fixtures.zoo_net import Entry, Net
from tests.fixtures.zoo_products import tokens
from tests.fixtures.zoo_scene import Scene, scene
from trtcal.backends.building import build
from trtcal.backends.options import BuildOptions
from trtcal.backends.registry import BACKENDS
from trtcal.errors import BackendError, InputError
from trtcal.model import load_model
from trtcal.quantization import Plan, prepare, quantize, write_quantized

BACKEND = BACKENDS["tensorrt-rtx"]
FORMATS, TARGETS = ("fp8", "int4", "nvfp4"), ("sm80", "sm86", "sm89", "sm120")
REFUSED, SHOWN, WIDTH = "refused", 3, 128


def wide_perceptron() -> Net:
    """Return two Gemms with weights of (outputs, inputs)."""
    net = Net(x=["n", WIDTH])
    a = net.relu(net.gemm("one", "x", 256, WIDTH))
    return net.done(net.gemm("two", a, WIDTH, 256))


def wide_products() -> Net:
    """Return two MatMuls with an Add."""
    net = tokens(size=WIDTH)
    a = net.relu(net.linear("one", "x", WIDTH, 256))
    return net.done(net.linear("two", a, 256, WIDTH))


def wide_encoder() -> Net:
    """Return a transformer's encoder layer: six MatMuls with weights, two without."""
    net = tokens(size=WIDTH)
    return net.done(encoder(net, "x", size=WIDTH))


def wide_embedding() -> Net:
    """Return an embedding, a projection, and the product that gives the logits."""
    net = Net(ids=["n", 12], vocabulary=256)
    a = net.add("Gather", net.weight(256, WIDTH, fan_in=2), "ids")
    a = net.relu(net.linear("one", a, WIDTH, WIDTH))
    return net.done(net.linear("logits", a, WIDTH, 256))


def wide_recurrent() -> Net:
    """Return an LSTM, and a product behind it."""
    net = tokens(size=WIDTH)
    weights = [net.weight(1, 4 * WIDTH, WIDTH, fan_in=WIDTH) for _ in range(2)]
    a = net.add("LSTM", "x", *weights, hidden_size=WIDTH, outputs=2, layout=0)[0]
    return net.done(net.linear("one", net.add("Squeeze", a, net.ints(1)), WIDTH, 16))


def wide_convolutions() -> Net:
    """Return two convolutions and a Gemm."""
    net = Net(x=["n", 32, 12, 12])
    a = net.relu(net.conv("one", "x", (64, 32, 3, 3)))
    a = net.relu(net.conv("two", a, (WIDTH, 64, 3, 3)))
    return net.done(net.head("head", a, WIDTH))


WIDE: dict[str, Callable[[], Net]] = {
    make.__name__: make
    for make in (
        wide_convolutions,
        wide_perceptron,
        wide_products,
        wide_encoder,
        wide_embedding,
        wide_recurrent,
    )
}
GRAPHS = {**ZOO, **{name: Entry(name, make, ()) for name, make in WIDE.items()}}


@dataclass
class Found:
    """What one graph asked for in one format: `got` by target, `reasons` by node and where."""

    graph: str
    precision: str
    heavy: int
    asked: int
    got: dict[str, Counter[str]] = field(default_factory=dict)
    reasons: list[tuple[str, str, str]] = field(default_factory=list)


def examine(name: str, formats: Iterable[str], targets: Iterable[str]) -> list[Found]:
    """Return what a graph gets in each format."""
    with tempfile.TemporaryDirectory() as place, contextlib.redirect_stderr(io.StringIO()):
        made = scene(GRAPHS[name], Path(place), 16)
        return [_of_format(name, made, one, targets, Path(place)) for one in formats]


def _of_format(
    name: str, made: Scene, precision: str, targets: Iterable[str], folder: Path
) -> Found:
    try:
        quantized = quantize(prepare(made.given), made.calibration, Plan(precision))
    except InputError as error:
        return Found(name, precision, len(made.heavy), 0, {}, [(error.message, name, "")])
    asked = [node for node in made.heavy if quantized.asked.get(node) == precision]
    found = Found(name, precision, len(made.heavy), len(asked))
    found.reasons += [(why, f"{name}/{node}", "") for node, why in quantized.skipped.items()]
    path = folder / f"{precision}.onnx"
    write_quantized(path, quantized)
    for target in targets if asked else ():
        _build(found, path, target, set(asked))
    return found


def _build(found: Found, path: Path, target: str, asked: set[str]) -> None:
    options = BuildOptions(target, GRAPHS[found.graph].shapes)
    try:
        made = build(load_model(path), BACKEND, options, path.parent / f"{path.stem}-{target}")
    except (BackendError, InputError) as error:
        found.got[target] = Counter({REFUSED: len(asked)})
        found.reasons.append((error.message, found.graph, target))
        return
    own = [one for one in made.outcomes if one.node in asked]
    found.got[target] = Counter(one.got for one in own)
    found.reasons += [
        (f"{one.asked} asked, {one.got} got: {one.reason}", f"{found.graph}/{one.node}", target)
        for one in own
        if not one.is_met
    ]


def show(found: Found, targets: Iterable[str]) -> None:
    """Print the line of a graph and format."""
    cells = [
        ", ".join(f"{many} {got}" for got, many in sorted(found.got[one].items()))
        for one in targets
    ]
    row = f"{found.graph:26}{found.precision:7}{found.heavy:5}{found.asked:6}  "
    print(row + "".join(f"{cell:20}" for cell in cells).rstrip(), flush=True)


def show_reasons(every: Iterable[Found]) -> None:
    """Print each reason, how often it came, and where first."""
    for precision in FORMATS:
        places = defaultdict(list)
        for found in every:
            for why, node, target in found.reasons if found.precision == precision else ():
                places[why].append(f"{node} {target}".strip())
        for why, where in sorted(places.items(), key=lambda pair: -len(pair[1])):
            print(f"# {precision}, {len(where)} times: {why} ({', '.join(where[:SHOWN])})")


def show_sums(every: Iterable[Found], targets: Iterable[str]) -> None:
    """Print for each format and target how many nodes were asked and what they got."""
    for precision in FORMATS:
        own = [found for found in every if found.precision == precision]
        asked, heavy = sum(found.asked for found in own), sum(found.heavy for found in own)
        for target in targets if own else ():
            got = sum((found.got.get(target, Counter()) for found in own), Counter[str]())
            said = ", ".join(f"{many} {what}" for what, many in got.most_common())
            print(f"# {precision} on {target}: {asked} of {heavy} nodes asked; {said}")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="name")
    parser.add_argument("--targets", default=",".join(TARGETS))
    parser.add_argument("--formats", default=",".join(FORMATS))
    options = parser.parse_args()
    targets, formats = options.targets.split(","), options.formats.split(",")
    print(f"# TensorRT-RTX {BACKEND.availability().version}, samples random")
    print(
        f"{'graph':26}{'format':7}heavy asked  " + "".join(f"{one:20}" for one in targets).rstrip()
    )
    every = []
    examined = partial(examine, formats=formats, targets=targets)
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
        for found in chain.from_iterable(pool.map(examined, options.names or GRAPHS)):
            every.append(found)
            if found.asked:
                show(found, targets)
    show_reasons(every)
    show_sums(every, targets)


if __name__ == "__main__":
    main()
