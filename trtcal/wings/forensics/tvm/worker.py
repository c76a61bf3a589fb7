"""Imports an ONNX model into Relax and runs a target's default pipeline; in a child process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx

from trtcal.documents import to_fields
from trtcal.model.isolated import answer
from trtcal.wings.forensics.tvm.compiler import MADE, MODEL
from trtcal.wings.forensics.tvm.fusion import Step, steps_of
from trtcal.wings.forensics.tvm.instrument import Recorder, instrument_of

GROUPED = "FuseOps"


def compile_model(request: dict[str, Any]) -> tuple[Step, ...]:
    """Run the pipeline, write its checkpoints, and return the operators with their kernels."""
    import tvm
    from tvm import relax
    from tvm.relax.frontend.onnx import from_onnx

    target = tvm.target.Target(request["target"])
    mod = from_onnx(onnx.load(MODEL), keep_params_in_input=False)
    recorder = Recorder(Path(MADE), "", tvm.__version__)
    recorder.imported(mod, request["model"])
    grouped = list[tuple[Step, ...]]()

    @tvm.ir.instrument.pass_instrument
    class Kernels:
        """Reads which operators share a kernel, as soon as that is decided."""

        def run_after_pass(self, mod: Any, info: Any) -> None:
            """Take the module after the pass that groups operators."""
            if info.name == GROUPED:
                grouped.append(steps_of(mod))

    with target, tvm.transform.PassContext(instruments=[instrument_of(recorder), Kernels()]):
        relax.get_default_pipeline(target)(mod)
    return grouped[0] if grouped else ()


if __name__ == "__main__":
    answer(lambda request: {"steps": [to_fields(step) for step in compile_model(request)]})
