"""What a model says of its authors, and of where it was made: doc strings and metadata."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import onnx

from trtcal.documents.redaction import Redaction
from trtcal.model.model import Model


def redacted_model(model: Model) -> Model:
    """Return a model without doc strings, and without names in its metadata."""
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    redact_proto(proto, Redaction([]))
    return replace(model, proto=proto)


def redact_proto(proto: Any, redaction: Redaction) -> bool:
    """Clear the doc strings of a model and redact its metadata; return whether it had any of that."""
    has_any = False
    for message in _messages(proto):
        if getattr(message, "doc_string", ""):
            message.ClearField("doc_string")
            has_any = True
        for entry in getattr(message, "metadata_props", ()):
            text = redaction.text(entry.value)
            has_any |= text != entry.value
            entry.value = text
    return has_any


def _messages(message: Any) -> Iterator[Any]:
    yield message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for each in value if hasattr(value, "__len__") else [value]:
                yield from _messages(each)
