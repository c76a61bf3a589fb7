"""PyTorch modules become ONNX by torch.export and torch.onnx, in the process of their program."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import onnx

from trtcal.errors import InputError
from trtcal.model.checking import first_line
from trtcal.model.model import Model, load_model
from trtcal.wings.frameworks.tidy import BATCH, name_weights

if TYPE_CHECKING:
    import torch

OPSET = 18
MISSING = "pip install 'trtcal[torch]', or export it with torch.onnx.export elsewhere"


def from_torch(
    module: torch.nn.Module,
    examples: Sequence[torch.Tensor] | Mapping[str, torch.Tensor],
    batch: bool = True,
    outputs: Sequence[str] | None = None,
) -> Model:
    """Return the model of a PyTorch module, exported in evaluation mode by `torch.onnx.export`.

    `examples` are the module's inputs, in order or by name, of shape (batch, ...); the ONNX inputs
    have the names of `forward`'s parameters. With `batch` the first axis of all inputs may have
    any size, without it the size of the examples. `outputs` names the outputs. `InputError` if
    torch cannot export the module.

    >>> import torch  # doctest: +SKIP
    >>> network = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU())  # doctest: +SKIP
    >>> model = from_torch(network, [torch.zeros(2, 8)], outputs=["scores"])  # doctest: +SKIP
    >>> str(model.outputs[0])  # doctest: +SKIP
    'scores: float32[batch, 4]'
    """
    _check_installed()
    is_training = getattr(module, "training", False)
    args, kwargs = ((), dict(examples)) if isinstance(examples, Mapping) else (tuple(examples), {})
    try:
        if hasattr(module, "eval"):
            module.eval()
        program = export(module, args, kwargs, batch, outputs)
    except Exception as error:  # torch raises what it likes
        raise _failure(module, error, batch) from error
    finally:
        if is_training:
            module.train()
    return load_model(_proto(program))


def _check_installed() -> None:
    try:
        import onnxscript  # noqa: F401  # what torch.onnx writes ONNX with
        import torch  # noqa: F401
    except ImportError as error:
        raise InputError(f"{error.name} is not installed", MISSING) from error


def _failure(module: object, error: Exception, batch: bool) -> InputError:
    cause = error.__cause__ or error
    hint = "batch=False keeps the examples' batch size; " if batch else ""
    return InputError(
        f"{type(module).__name__} cannot be exported: {first_line(Exception(str(cause)))}",
        f"{hint}`torch.export.export` prints the details",
    )


def export(
    module: Any,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    batch: bool = False,
    outputs: Sequence[str] | None = None,
) -> Any:
    """Return torch's ONNX program of a module, or of an exported program without examples."""
    import torch

    with _quiet(), torch.no_grad():
        return torch.onnx.export(
            module,
            tuple(map(_doubled, args)) if batch else args,
            kwargs={
                name: _doubled(value) if batch else value for name, value in (kwargs or {}).items()
            },
            dynamo=True,
            opset_version=OPSET,
            output_names=outputs,
            dynamic_shapes=_axes(args, kwargs or {}) if batch else None,
            verbose=False,
        )


def _axes(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return that the first axis of each input is the batch; arguments by place, or by name."""
    import torch

    axis = {0: torch.export.Dim(BATCH)}
    return dict.fromkeys(kwargs, axis) if kwargs else tuple(axis for _ in args)


def _doubled(example: Any) -> Any:
    """Return an example of at least two samples: torch takes a size of one for a constant."""
    import torch

    return torch.cat([example, example]) if len(example) == 1 else example


def _proto(program: Any) -> onnx.ModelProto:
    data = io.BytesIO()
    onnx.save(program.model_proto, data)
    proto = onnx.load_from_string(data.getvalue())
    name_weights(proto)
    return proto


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep torch's warnings about its own parts from the user."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
