"""The loader of models of other frameworks and exporters: an entry point of `trtcal.loaders`."""

from __future__ import annotations

from pathlib import Path

import onnx

from trtcal.errors import InputError
from trtcal.model.loaders import Declared
from trtcal.wings.frameworks.formats import REFUSED, format_of

CONFIG = "config.json"


class FrameworkLoader:
    """Converts TensorFlow's and PyTorch's models, and reads exports: the `Loader` of this wing."""

    def is_model(self, path: Path) -> bool:
        """Tell whether a path looks like a model of these frameworks, also like one that is refused."""
        is_known = path.suffix.lower() in REFUSED or format_of(path) is not None
        return is_known or _is_export(path)

    def reads(self, path: Path) -> bool:
        """Tell whether `convert` reads a path; `InputError` for a file that is never opened."""
        hint = REFUSED.get(path.suffix.lower())
        if hint and path.is_file():
            raise InputError(f"model {path} is not read: trtcal refuses {path.suffix} files", hint)
        return format_of(path) is not None or _is_export(path)

    def convert(self, path: Path, trust: bool) -> Path:
        """Return the ONNX file of a model: converted, or the one of an export's folder."""
        from trtcal.wings.frameworks.conversion import convert
        from trtcal.wings.frameworks.huggingface import network_of

        form = format_of(path)
        return network_of(path) if form is None else convert(path, form, trust)

    def declared(self, path: Path, proto: onnx.ModelProto) -> Declared | None:
        """Return what Hugging Face's files beside a model declare, or the metadata of Ultralytics."""
        if any((folder / CONFIG).is_file() for folder in (path.parent, path.parent.parent)):
            from trtcal.wings.frameworks.huggingface import declared_beside

            if declared := declared_beside(path, proto):
                return declared
        if not any(item.key == "imgsz" for item in proto.metadata_props):
            return None
        from trtcal.wings.frameworks.ultralytics import declared_in

        return declared_in(proto)


def _is_export(path: Path) -> bool:
    """Tell whether a folder is one of Hugging Face, of which the module is imported only then."""
    if not (path.is_dir() and (path / CONFIG).is_file()):
        return False
    from trtcal.wings.frameworks.huggingface import has_networks

    return has_networks(path)


LOADER = FrameworkLoader()
