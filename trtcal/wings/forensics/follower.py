"""The checkpoints of a run, written beside it: what each pass and stage got and made."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trtcal.config import Config
from trtcal.errors import InputError
from trtcal.evidence.manifest import Build
from trtcal.model.passes import PassRecord, Prepared
from trtcal.runs.follower import Follower, Stage
from trtcal.wings.forensics.chain import FILE, Checkpoint, digest_options
from trtcal.wings.forensics.checkpoints import (
    GRAPHS,
    PREVIOUS,
    Checkpoints,
    GraphTables,
    build_checkpoints,
    checkpoints_of,
    keep_previous,
    write_checkpoints,
)

if TYPE_CHECKING:
    import onnx_graphsurgeon as gs


class CheckpointFollower(Follower):
    """Writes the chain of checkpoints, and the graphs that the preparation passes made."""

    name = "checkpoints"
    outputs = (FILE, GRAPHS, PREVIOUS)

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.graphs, self.chain = GraphTables(), list[Checkpoint]()

    def see_graph(self, graph: gs.Graph, record: PassRecord | None) -> None:
        """Keep the table of a graph."""
        self.graphs.see(graph, record)

    def start(self, folder: Path, place: Path) -> None:
        """Keep the checkpoints of the run that is replaced."""
        keep_previous(folder, place)

    def see_prepared(self, prepared: Prepared) -> None:
        """Add the preparation passes."""
        self.chain += checkpoints_of(prepared, self.graphs.tables)

    def see_stage(self, stage: Stage) -> None:
        """Add a stage."""
        options, before = digest_options(stage.options), digest_options(stage.inputs)
        checkpoint = Checkpoint(stage.name, stage.output, before, stage.digest, options=options)
        self.chain.append(checkpoint)

    def see_build(self, build: Build, model: str) -> None:
        """Add the stages of a builder."""
        self.chain += build_checkpoints(build, model)

    def write(self, folder: Path) -> str:
        """Write the chain and its graphs; return the digest of the last line."""
        return write_checkpoints(folder, self.chain, self.graphs.tables)

    @staticmethod
    def problem(folder: Path, digest: str | None) -> str | None:
        """Return what is wrong with the checkpoints in a folder."""
        try:
            len(Checkpoints.read(folder, digest).graphs)  # reads them, and checks their digests
        except InputError as error:
            return error.message
        return None
