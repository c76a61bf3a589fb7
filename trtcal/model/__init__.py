"""ONNX models: files of any size, graphs, preparation passes, fingerprints."""

from trtcal.model.model import (
    Model,
    ModelSource,
    TensorSpec,
    checked,
    first_line,
    load_model,
    name_nodes,
    opset_of,
    unique,
    uniquely_named,
    without_samples,
)
