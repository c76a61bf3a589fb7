"""What is predicted to fuse and what TensorRT-RTX makes of it, on the tests' graphs with known answers.

    python -m benchmarks.fusion [--target sm89] [name ...]

Prints one line a match: graph, pattern, prediction with the breaking nodes, the engine's layers that
list the match's nodes, and whether the engine agrees: one layer for a whole pattern, several for a
broken one. A graph that passes can fix is printed once more, fixed. Then the counts of both.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.evidence.fusion.graphs import GRAPHS
from trtcal.backends.building import build
from trtcal.backends.options import BuildOptions
from trtcal.backends.tensorrt import TensorRTRTX
from trtcal.errors import GateFailed
from trtcal.evidence.fusion.fusions import ON_REQUEST, Fusions, check_fusions, fix_fusions
from trtcal.evidence.layers.reading import read_engine
from trtcal.model import Model

BACKEND = TensorRTRTX()
HEADINGS = ("graph", "pattern", "prediction", "engine", "answer")


def check(model: Model, target: str, folder: Path) -> Fusions:
    """Build a model and check it against its layers."""
    build(model, BACKEND, BuildOptions(target), folder)
    return check_fusions(model, layers=read_engine(folder))


def rows(name: str, found: Fusions) -> list[tuple[str, ...]]:
    """Return one row for each match."""
    listed = []
    for match, seen, verdict in zip(found.matches, found.seen, found.verdicts, strict=True):
        breakers = dict.fromkeys(node for one in match.breakers for node in one.nodes)
        prediction = f"broken by {', '.join(breakers)}" if breakers else match.state
        layers = [f"{kind} {layer}" if kind == "kgen" else kind for layer, kind in seen.layers]
        engine = f"{len(layers)}: {' + '.join(layers)}" if layers else seen.state
        listed.append((name, match.pattern, prediction, engine, verdict))
    return listed


def main() -> None:
    """Build every graph, and those that can be fixed once more."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--target", default="sm89")
    parser.add_argument("names", nargs="*", default=list(GRAPHS))
    arguments = parser.parse_args()
    counts: Counter[str] = Counter()
    print(f"tensorrt-rtx {BACKEND.availability().version} for {arguments.target}")
    print(" | ".join(HEADINGS))
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.names:
            for title, found in checks(name, arguments.target, Path(folder) / name):
                for line in rows(title, found) or [(title, "none", "", "", "")]:
                    print(" | ".join(line), flush=True)
                kind = "fixed" if title != name else "given"
                pairs = zip(found.matches, found.verdicts, strict=True)
                counts.update(f"{kind}, {match.state}: {said}" for match, said in pairs)
    for what, count in sorted(counts.items()):
        print(f"{what} {count}")


def checks(name: str, target: str, place: Path) -> Iterator[tuple[str, Fusions]]:
    """Yield the check of a graph, and of the fixed graph if it can be fixed."""
    place.mkdir()
    model = GRAPHS[name].save(place)
    found = check(model, target, place / "build")
    yield name, found
    with contextlib.suppress(GateFailed):
        fixed = fix_fusions(model, found, ON_REQUEST).model
        yield f"{name}, fixed", check(fixed, target, place / "fixed")


if __name__ == "__main__":
    main()
