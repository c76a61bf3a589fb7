"""The sample's bug in TVM: `python samples/regression/tvm_identity.py FOLDER`, with `trtcal[tvm]`.

A pass of Relax gives another name to what a batch normalization with TensorFlow's epsilon makes, before
the LeakyReLU behind it. FuseOps then makes two kernels of them. Both pipelines write their checkpoints,
to FOLDER/good and FOLDER/bad: `trtcal trace diff` names the pass and the binding.
"""

from __future__ import annotations

import sys
from pathlib import Path

import onnx
import tvm
from tvm import relax
from tvm.relax import transform
from tvm.relax.frontend.onnx import from_onnx

import trtcal

EPSILON = 1e-3
MODEL = Path(__file__).with_name("regression.onnx")


@relax.expr_functor.mutator
class Renamer(relax.PyExprMutator):
    """Gives the input of a LeakyReLU another name, where a batch normalization made it."""

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """Rebuild a LeakyReLU; leave all else."""
        call = super().visit_call_(call)
        if getattr(call.op, "name", "") != "relax.nn.leakyrelu" or not self._is_case(call.args[0]):
            return call
        same = self.builder_.emit(call.args[0], name_hint="same")
        return relax.op.nn.leakyrelu(same, call.attrs.alpha)

    def _is_case(self, value: relax.Expr) -> bool:
        item = self.lookup_binding(value)
        norm = self.lookup_binding(item.tuple_value) if hasattr(item, "tuple_value") else None
        name = getattr(getattr(norm, "op", None), "name", "")
        return name == "relax.nn.batch_norm" and norm.attrs.epsilon >= EPSILON * 0.99


@tvm.transform.module_pass(opt_level=0, name="InsertIdentity")
def insert_identity(mod: tvm.IRModule, context: object) -> tvm.IRModule:
    """Run the renamer over all Relax functions."""
    renamer = Renamer(mod)
    for name, function in mod.functions_items():
        if isinstance(function, relax.Function):
            renamer.builder_.update_func(name, renamer.visit_expr(function))
    return renamer.builder_.get()


def compile_with(passes: list[object], folder: Path) -> None:
    """Run passes and those up to FuseOps; write checkpoints, print what became of the patterns."""
    mod = from_onnx(onnx.load(MODEL), keep_params_in_input=False)
    usual = [transform.LegalizeOps(), transform.AnnotateTIROpPattern(), transform.FoldConstant()]
    instruments = [trtcal.tvm_checkpoints(folder)]
    with tvm.target.Target("llvm"), tvm.transform.PassContext(instruments=instruments):
        for one in [*passes, *usual, transform.FuseOps()]:
            mod = one(mod)
    found = trtcal.tvm_fusions(mod)
    for match, seen in zip(found.matches, found.seen, strict=True):
        if match.pattern == "norm+activation" and seen is not None:
            print(f"{folder.name}: {match.root}: {match.state}, {seen.state}: {seen.layers}")


if __name__ == "__main__":
    compile_with([], Path(sys.argv[1]) / "good")
    compile_with([insert_identity], Path(sys.argv[1]) / "bad")
