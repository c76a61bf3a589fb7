"""The checkpoints of a run: its chain, and beside it the graphs of which the chain has the digests.

`graphs.npz` holds the table of each graph that a preparation pass got or made, by the digest that the
chain has of it, so that the first node that differs can be named when the passes are gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from trtcal.documents import (
    canonical_json,
    digest_bytes,
    from_fields,
    parsing,
    read_npz,
    together,
    write_npz,
)
from trtcal.documents.bounds import parse_json
from trtcal.errors import InputError
from trtcal.evidence.chain import FILE, Checkpoint, digest_options, read_chain, write_chain
from trtcal.model.merkle import GraphTable
from trtcal.model.passes import Prepared

GRAPHS = "graphs.npz"
PREPARE = "prepare"


def checkpoints_of(prepared: Prepared) -> list[Checkpoint]:
    """Return a checkpoint for each pass over a model, those that were skipped too."""
    digests = [graph.digest for graph in prepared.graphs]
    return [
        Checkpoint(
            PREPARE,
            record.name,
            before,
            after,
            record.version,
            digest_options({"skipped": record.skipped}),
        )
        for record, before, after in zip(prepared.records, digests[:-1], digests[1:], strict=True)
    ]


def write_checkpoints(
    folder: Path, checkpoints: Iterable[Checkpoint], graphs: Iterable[GraphTable]
) -> str:
    """Write a chain and the tables of its graphs; return the digest of its last line."""
    tables = {graph.digest: graph for graph in graphs}
    arrays = [(name.partition(":")[2], _packed(table)) for name, table in sorted(tables.items())]
    with together():
        write_npz(folder / GRAPHS, arrays)
        return write_chain(folder / FILE, checkpoints)


def _packed(table: GraphTable) -> np.ndarray:
    return np.frombuffer(canonical_json(vars(table)), np.uint8)


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints in a folder, in their order, and the graphs beside them where there are any."""

    folder: Path
    chain: tuple[Checkpoint, ...]

    @classmethod
    def read(cls, folder: Path, last: str | None = None) -> Checkpoints:
        """Read a folder's chain; `InputError` if there is none, or it is not as it was written."""
        path = folder / FILE if folder.is_dir() else folder
        if not path.is_file():
            raise InputError(f"{folder} holds no {FILE}", "`trtcal run` writes one")
        return cls(path.parent, read_chain(path, last))

    @cached_property
    def graphs(self) -> Mapping[str, GraphTable]:
        """The tables of graphs by their digests; `InputError` if one is not what its name says."""
        path = self.folder / GRAPHS
        if not path.is_file():
            return {}
        arrays = read_npz(path)
        return parsing(path, lambda: dict(_tables(arrays)))


def _tables(arrays: Mapping[str, np.ndarray]) -> Iterator[tuple[str, GraphTable]]:
    for name, array in arrays.items():
        if array.dtype != np.uint8:
            raise TypeError(f"{name} is of type {array.dtype}")
        data = array.tobytes()
        if digest_bytes(data) != f"sha256:{name}":
            raise ValueError(f"{name} was changed after it was written")
        table = from_fields(GraphTable, parse_json(data))
        table.check()
        yield f"sha256:{name}", table
