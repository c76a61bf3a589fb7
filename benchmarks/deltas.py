"""Changes of graphs: whether kind and first node are named, and what a table of fingerprints costs.

    python -m benchmarks.deltas [--seeds 50] [--nodes 1000,10000]

Every kind of change is made to networks of the tests' zoo, at a seeded place, and compared; each
network is also written, read and compared with itself. Then one chain of nodes of each length gets its
table: the time beside that of serializing the same model and of its SHA-256, and the bytes of the table
in `graphs.npz` beside those of the model.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import time
import zipfile
from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.fixtures.zoo import ZOO
from tests.model.deltas import KINDS, changed
from trtcal.documents import canonical_json
from trtcal.wings.forensics.delta import difference
from trtcal.wings.forensics.merkle import table_of

CHANNELS = 16


def count_right(kind: str, protos: list[onnx.ModelProto], seeds: int) -> int:
    """Return of how many changes kind and node are named."""
    right = 0
    for seed in range(seeds):
        before, after, expected = changed(kind, protos, seed)
        found = difference(before, after)
        right += found is not None and (found.change, found.node) == expected
    return right


def count_alerts(protos: list[onnx.ModelProto], repeats: int) -> int:
    """Return how many models differ from themselves, written and read again."""
    pairs = (protos[number % len(protos)] for number in range(repeats))
    return sum(
        difference(one, onnx.ModelProto.FromString(one.SerializeToString())) is not None
        for one in pairs
    )


def chain(count: int) -> onnx.ModelProto:
    """Return a chain of `count` nodes, every second one with a weight of its own."""
    rng = np.random.default_rng(count)
    nodes, weights = [], []
    for number in range(count):
        inputs = [f"t{number}"]
        if number % 2:
            values = rng.standard_normal(CHANNELS).astype(np.float32)
            weights.append(numpy_helper.from_array(values, f"w{number}"))
            inputs.append(f"w{number}")
        op = "Mul" if number % 2 else "Relu"
        nodes.append(helper.make_node(op, inputs, [f"t{number + 1}"], f"n{number}"))
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, CHANNELS])
        for name in ("t0", f"t{count}")
    ]
    return helper.make_model(helper.make_graph(nodes, "chain", ends[:1], ends[1:], weights))


def seconds(work: Callable[[], object]) -> float:
    """Return the least processor time of three goes."""
    found = []
    for _ in range(3):
        started = time.process_time()
        work()
        found.append(time.process_time() - started)
    return min(found)


def packed_bytes(data: bytes) -> int:
    """Return the size of bytes in a compressed archive."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("table", data)
    return len(file.getvalue())


def show_costs(count: int) -> None:
    """Print what the table of a chain costs beside a digest of the file."""
    proto = chain(count)
    data = proto.SerializeToString()
    table_s = seconds(lambda: table_of(proto))
    file_s = seconds(lambda: hashlib.sha256(proto.SerializeToString()).digest())
    table = packed_bytes(canonical_json(vars(table_of(proto))))
    print(
        f"{count:>7} nodes  table {1e3 * table_s:8.1f} ms  digest of the file {1e3 * file_s:6.1f} ms"
        f"  table {table / 1e3:7.0f} kB  model {len(data) / 1e3:7.0f} kB"
    )


def main() -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=50, help="changes of each kind")
    parser.add_argument("--nodes", default="1000,10000", help="lengths of chains")
    options = parser.parse_args()
    protos = [ZOO[name].make().proto() for name in sorted(ZOO)]
    for kind in KINDS:
        right = count_right(kind, protos, options.seeds)
        print(f"{kind:<10} kind and first node right in {right} of {options.seeds}")
    repeats = 4 * options.seeds
    print(f"unchanged  {count_alerts(protos, repeats)} alerts in {repeats}")
    for count in map(int, options.nodes.split(",")):
        show_costs(count)


if __name__ == "__main__":
    main()
