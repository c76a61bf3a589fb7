"""The checkpoints of a run: its chain, and beside it the graphs of which the chain has the digests.

`graphs.npz` holds the table of each graph that a preparation pass got or made, by the digest that the
chain has of it, so that the first node that differs can be named when the passes are gone.

The builder's stages are those of a verbose log: TensorRT and TensorRT-RTX print `Original: 34 layers`
and then `After vertical fusions: 9 layers` behind each stage, and between these lines what they fused,
removed or moved.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import onnx_graphsurgeon as gs

from trtcal.documents import (
    canonical_json,
    digest_bytes,
    from_fields,
    parsing,
    read_npz,
    to_fields,
    together,
    write_bytes,
    write_npz,
)
from trtcal.documents.bounds import parse_json, read_bytes
from trtcal.errors import InputError
from trtcal.evidence.layers.layer import Layer
from trtcal.evidence.log.files import portions_of_file
from trtcal.evidence.log.lines import split_line
from trtcal.evidence.manifest import Build
from trtcal.model.graph import small_export
from trtcal.model.passes import PassRecord, Prepared
from trtcal.model.passes.preparation import AS_ASKED, ON_REQUEST
from trtcal.wings.forensics.chain import FILE, Checkpoint, digest_options, read_chain, write_chain
from trtcal.wings.forensics.merkle import GraphTable, table_of

GRAPHS = "graphs.npz"
PREPARE = "prepare"
PREVIOUS = "previous"
"""Folder in a run's, with the checkpoints of the run that it replaced."""
STAGE = re.compile(r"(?:After )?([A-Za-z][\w -]{0,60}): (\d{1,9}) layers$")
CHANGE = re.compile(
    r"(?:\w+: )?(?:Fusing|Fused|Removing|Removed|Eliminating|Merging|Swapping|Moving|Retargeting|"
    r"Replacing|Converting|Simplifying|Eliminated|Merged|Swapped)\b"
)
MOST_STAGES = 10_000


@dataclass(frozen=True)
class BuilderStage:
    """One stage: its name, how many layers it left, and what it says that it changed."""

    name: str
    layers: int
    changes: tuple[str, ...]


def builder_stages(log: Path) -> tuple[BuilderStage, ...]:
    """Return the stages of a verbose build log in their order, none of a log that lists none."""
    stages, changes = list[BuilderStage](), list[str]()
    for line in _lines(log):
        if CHANGE.match(line):
            changes.append(line)
        elif (stage := STAGE.match(line)) and len(stages) < MOST_STAGES:
            stages.append(BuilderStage(stage[1], int(stage[2]), tuple(changes)))
            changes = []
    return tuple(stages)


def _lines(log: Path) -> Iterator[str]:
    for portion in portions_of_file(log):
        for line in portion.decode("utf-8", "replace").split("\n"):
            yield split_line(line)[1]


@dataclass
class GraphTables:
    """The table of a graph before the first preparation pass, and after each one."""

    tables: list[GraphTable] = field(default_factory=list)

    def see(self, graph: gs.Graph, record: PassRecord | None) -> None:
        """Add the table of a graph; `prepare_with_record` calls it."""
        if record is not None and record.before == record.after:
            self.tables.append(self.tables[-1])
            return
        proto, weights = small_export(graph)
        digests = {name: weight.digest for name, weight in weights.items()}
        self.tables.append(table_of(proto, digests))


def checkpoints_of(prepared: Prepared, tables: Sequence[GraphTable]) -> list[Checkpoint]:
    """Return a checkpoint for each pass over a model, those that were skipped too."""
    digests = [table.digest for table in tables]
    return [
        Checkpoint(
            PREPARE,
            record.name,
            before,
            after,
            record.version,
            digest_options({"is_asked": record.skipped not in (ON_REQUEST, AS_ASKED)}),
        )
        for record, before, after in zip(prepared.records, digests[:-1], digests[1:], strict=True)
    ]


def build_checkpoints(build: Build, model: str) -> list[Checkpoint]:
    """Return a checkpoint for each stage of the builder that its log shows, and one for the layers.

    `model` is the digest of what was built. A stage is what it left and what it says that it changed;
    layers are compared without tactics and times, which differ between equal builds. So does the
    engine's file, whose digest stands beside.
    """
    about = {
        "options": digest_options(build.options),
        "subject": f"{build.model_name} for {build.target}",
        "tool": build.backend,
        "tool_version": build.backend_version,
    }
    checkpoints, before, stages = list[Checkpoint](), model, list[object]()
    for stage in builder_stages(build.log):
        stages.append(to_fields(stage))
        after = digest_options(stages)
        checkpoints.append(Checkpoint("build", stage.name, before, after, **about))
        before = after
    layers = digest_options([_layer(layer) for layer in build.layers])
    engine = str(build.measured["engine_digest"])
    return [*checkpoints, Checkpoint("build", "layers", before, layers, artifact=engine, **about)]


def _layer(layer: Layer) -> list[object]:
    tensors = [
        [[tensor.name, tensor.dtype] for tensor in side] for side in (layer.inputs, layer.outputs)
    ]
    return [layer.name, layer.kind, layer.precision, *tensors]


def write_checkpoints(
    folder: Path, checkpoints: Iterable[Checkpoint], graphs: Iterable[GraphTable]
) -> str:
    """Write a chain and the tables of its graphs; return the digest of its last line."""
    tables = {graph.digest: graph for graph in graphs}
    arrays = [
        (name.partition(":")[2], np.frombuffer(canonical_json(vars(table)), np.uint8))
        for name, table in sorted(tables.items())
    ]
    with together():
        write_npz(folder / GRAPHS, arrays)
        return write_chain(folder / FILE, checkpoints)


def keep_previous(folder: Path, place: Path) -> None:
    """Copy the checkpoints in a run's folder into `place`, which becomes that folder."""
    for name in (FILE, GRAPHS):
        if (folder / name).is_file():
            write_bytes(place / PREVIOUS / name, read_bytes(folder / name))


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
            raise InputError(f"{folder} has no {FILE}", "`trtcal run` writes one")
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
