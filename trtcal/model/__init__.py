"""ONNX models: files of any size, graphs, preparation passes, fingerprints."""

from trtcal.model.checking import first_line
from trtcal.model.model import (
    Model,
    ModelSource,
    TensorSpec,
    checked,
    load_model,
    name_nodes,
    uniquely_named,
    without_samples,
)
