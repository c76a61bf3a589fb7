"""The helpers of `trtcal.graph`, for those rooms that import them from here."""

from trtcal.graph import (
    HALF_OPSET,
    constant,
    export_model,
    import_graph,
    is_half,
    is_weight,
    load_weights,
    node_names,
    only_consumer,
    tensor_names,
)

__all__ = [
    "HALF_OPSET",
    "constant",
    "export_model",
    "import_graph",
    "is_half",
    "is_weight",
    "load_weights",
    "node_names",
    "only_consumer",
    "tensor_names",
]
