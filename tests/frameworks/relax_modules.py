"""Relax modules by hand, and seeded changes of them, with the kind and the binding that is expected."""

import numpy as np
import tvm
from tvm import relax, topi

KINDS = "renamed", "reordered", "constants", "structure"
UNARY = {
    "relu": relax.op.nn.relu, "tanh": relax.op.tanh, "sigmoid": relax.op.sigmoid,
    "exp": relax.op.exp, "negative": relax.op.negative,
}  # fmt: skip
BINARY = {"add": relax.op.add, "multiply": relax.op.multiply}
SHAPE = 2, 8


def variable(name, shape):
    return relax.Var(name, relax.TensorType(shape, "float32"))


def build(steps):
    """Return a module of steps `(name, operator, input, constant)`, whose last two are added."""
    builder, x = relax.BlockBuilder(), variable("x", SHAPE)
    with builder.function("main", [x]):
        with builder.dataflow():
            made = {"x": x}
            for name, operator, source, constant in steps:
                arguments = [made[source]] + ([] if constant is None else [relax.const(constant)])
                value = {**UNARY, **BINARY}[operator](*arguments)
                made[name] = builder.emit(value, name_hint=name)
            last = [made[name] for name in sorted(name for name, *_ in steps[-2:])]
            result = builder.emit_output(relax.op.add(*last))
        builder.emit_func_output(result)
    return builder.get()


def random_steps(random, length=6):
    """Return two branches whose steps take turns; all of the second differ from those of the first."""
    steps = []
    for place in range(length):
        for branch in "ab":
            source = f"{branch}{place - 1}" if place else "x"
            is_binary = place == 0 or random.random() < 0.5
            operator = random.choice([*(BINARY if is_binary else UNARY)])
            constant = random.normal(size=SHAPE[1]).astype(np.float32) if is_binary else None
            steps.append((f"{branch}{place}", str(operator), source, constant))
    return steps


def changed(kind, seed):
    """Return a module, the same after a change, and the binding where it begins."""
    random = np.random.default_rng([seed, KINDS.index(kind)])
    steps = random_steps(random)
    place = int(random.integers(len(steps)))
    other = list(steps)
    name, operator, source, constant = steps[place]
    if kind == "constants":
        places = [n for n, step in enumerate(steps) if step[3] is not None]
        place = int(random.choice(places))
        name, operator, source, constant = steps[place]
        flipped = constant.copy()
        flipped.view(np.uint32)[random.integers(len(flipped))] ^= np.uint32(
            1 << random.integers(32)
        )
        other[place] = (name, operator, source, flipped)
    elif kind == "structure":
        pool = [one for one in (UNARY if constant is None else BINARY) if one != operator]
        other[place] = (name, str(random.choice(pool)), source, constant)
    elif kind == "reordered":
        place -= place % 2
        other[place : place + 2] = reversed(steps[place : place + 2])
        name = steps[place + 1][0]
    else:
        new = f"{name}_of_another_name"
        other = [
            (new if one[0] == name else one[0], one[1], new if one[2] == name else one[2], one[3])
            for one in steps
        ]
        name = new
    return build(steps), build(other), f"main > {name}"


def norm_and_activation(norm="batch_norm", alpha=0.1):
    """Return batch_norm or layer_norm, with leaky_relu after it."""
    builder, x = relax.BlockBuilder(), variable("x", (1, 4, 8, 8))
    random = np.random.default_rng(0)
    with builder.function("main", [x]):
        with builder.dataflow():
            if norm == "batch_norm":
                values = [relax.const(random.uniform(1, 2, 4).astype("float32")) for _ in range(4)]
                both = relax.op.nn.batch_norm(x, *values, axis=1, training=False)
                normed = builder.emit(relax.TupleGetItem(builder.emit(both), 0))
            else:
                values = [relax.const(np.ones(8, "float32")) for _ in range(2)]
                normed = builder.emit(relax.op.nn.layer_norm(x, *values, axes=[-1]))
            result = builder.emit_output(relax.op.nn.leakyrelu(normed, alpha))
        builder.emit_func_output(result)
    return builder.get()


@relax.expr_functor.mutator
class _Insert(relax.PyExprMutator):
    """Gives the input of each leaky_relu another name first, or copies it in a kernel of its own."""

    def __init__(self, mod, copies):
        super().__init__(mod)
        self.copies = copies

    def visit_call_(self, call):
        if getattr(call.op, "name", "") != "relax.nn.leakyrelu":
            return super().visit_call_(call)
        source = call.args[0]
        if self.copies:
            named = self.builder_.emit_te(topi.identity, source, primfunc_name_hint="identity")
        else:
            named = self.builder_.emit(source)
        return relax.op.nn.leakyrelu(named, call.attrs.alpha)


def insert_identity(copies=False):
    """Return a pass of the story's kind: it puts an identity before each leaky_relu."""

    @tvm.transform.module_pass(opt_level=0, name="InsertIdentity")
    def run(mod, context):
        inserter = _Insert(mod, copies)
        for variable, function in mod.functions_items():
            if isinstance(function, relax.Function):
                inserter.builder_.update_func(variable, inserter.visit_expr(function))
        return inserter.builder_.get()

    return run
