"""Checkpoints of TVM's passes: an instrument of its PassContext that writes a chain.

    with tvm.transform.PassContext(instruments=[trtcal.tvm_checkpoints("out")]):
        module = relax.get_default_pipeline(target)(module)

`trtcal trace diff good/ out/` then names the first pass that made something else, and where.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from trtcal.documents import digest_bytes
from trtcal.errors import InputError
from trtcal.wings.forensics.chain import Checkpoint, digest_options
from trtcal.wings.forensics.checkpoints import write_checkpoints
from trtcal.wings.forensics.merkle import GraphTable
from trtcal.wings.forensics.tvm.table import table_of

STAGE = "tvm"
EVALUATES = "FoldConstant"
"""Compiles and runs a kernel for each constant that it folds: passes over those are not recorded."""


class Recorder:
    """Takes what passes get and make; a pass inside another one stands before it in the chain.

    So the first checkpoint that differs between two chains is of the innermost pass.
    """

    def __init__(self, folder: Path, subject: str, version: str) -> None:
        self.folder, self.subject, self.version = folder, subject, version
        self.checkpoints = list[Checkpoint]()
        self.tables = dict[str, GraphTable]()
        self._last: tuple[Any, str] | None = None
        self._open = list[tuple[str, str]]()

    def imported(self, mod: Any, fingerprint: str) -> None:
        """Take what a model of a fingerprint was imported as."""
        self._open.append(("import", fingerprint))
        self.end(mod, "import", {})

    def begin(self, mod: Any, name: str) -> None:
        """Take what a pass got."""
        self._open.append((name, "" if self._is_inside else self._digest(mod)))

    @property
    def _is_inside(self) -> bool:
        return any(name == EVALUATES for name, _ in self._open)

    def end(self, mod: Any, name: str, options: dict[str, object]) -> None:
        """Take what it made."""
        _, before = self._open.pop()
        if self._is_inside:
            return
        self.checkpoints.append(
            Checkpoint(
                STAGE,
                name,
                before,
                self._digest(mod),
                options=digest_options(options),
                subject=self.subject,
                tool="tvm",
                tool_version=self.version,
                artifact=digest_bytes(str(mod.script()).encode()),
            )
        )

    def _digest(self, mod: Any) -> str:
        """Return the digest of a module's table; that of the last one is known."""
        if self._last is None or not mod.same_as(self._last[0]):
            table = table_of(mod)
            self.tables[table.digest] = table
            self._last = mod, table.digest  # held, so that no pass changes it in place
        return self._last[1]

    def write(self) -> None:
        """Write the chain and its graphs."""
        self._open.clear()
        write_checkpoints(self.folder, self.checkpoints, self.tables.values())


def tvm_checkpoints(folder: str | os.PathLike[str], subject: str = "") -> Any:
    """Return an instrument for `tvm.transform.PassContext` that writes the checkpoints of all passes.

    They are in `folder` when the context ends, like those of a run: `trtcal trace show` and
    `diff` read them. `subject` names the module in the chain. `InputError` if TVM is not
    installed.

    >>> import tvm  # doctest: +SKIP
    >>> with tvm.transform.PassContext(instruments=[tvm_checkpoints("out")]):  # doctest: +SKIP
    ...     module = tvm.relax.get_default_pipeline(target)(module)
    """
    try:
        import tvm
    except ImportError as error:
        raise InputError("TVM is not installed", "pip install 'trtcal[tvm]'") from error
    return instrument_of(Recorder(Path(folder), subject, tvm.__version__))


def instrument_of(recorder: Recorder) -> Any:
    """Return the instrument that gives a recorder what passes get and make."""
    import tvm

    @tvm.ir.instrument.pass_instrument
    class Checkpoints:
        """Gives modules to the recorder."""

        def run_before_pass(self, mod: Any, info: Any) -> None:
            """Take what a pass gets."""
            recorder.begin(mod, str(info.name))

        def run_after_pass(self, mod: Any, info: Any) -> None:
            """Take what it made."""
            recorder.end(mod, str(info.name), {"opt_level": int(info.opt_level)})

        def exit_pass_ctx(self) -> None:
            """Write the chain."""
            recorder.write()

    return Checkpoints()
