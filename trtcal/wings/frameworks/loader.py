"""The loader of models of other frameworks and exporters: an entry point of `trtcal.loaders`."""

from __future__ import annotations

from pathlib import Path

import onnx

from trtcal.errors import InputError
from trtcal.model.loaders import Declared
from trtcal.wings.frameworks.formats import REFUSED, format_of
from trtcal.wings.frameworks.huggingface import declared_beside, is_export, network_of
from trtcal.wings.frameworks.ultralytics import declared_in


class FrameworkLoader:
    """Converts TensorFlow's and PyTorch's models, and reads exports: the `Loader` of this wing."""

    def is_model(self, path: Path) -> bool:
        """Tell whether a path looks like a model of these frameworks, also like one that is refused."""
        is_known = path.suffix.lower() in REFUSED or format_of(path) is not None
        return is_known or is_export(path)

    def reads(self, path: Path) -> bool:
        """Tell whether `convert` reads a path; `InputError` for a file that is never opened."""
        hint = REFUSED.get(path.suffix.lower())
        if hint and path.is_file():
            raise InputError(f"model {path} is not read: trtcal refuses {path.suffix} files", hint)
        return format_of(path) is not None or is_export(path)

    def convert(self, path: Path, trust: bool) -> Path:
        """Return the ONNX file of a model: converted, or the one of an export's folder."""
        from trtcal.wings.frameworks.conversion import convert

        form = format_of(path)
        return network_of(path) if form is None else convert(path, form, trust)

    def declared(self, path: Path, proto: onnx.ModelProto) -> Declared | None:
        """Return what Hugging Face's files beside a model declare, or the metadata of Ultralytics."""
        return declared_beside(path, proto) or declared_in(proto)


LOADER = FrameworkLoader()
