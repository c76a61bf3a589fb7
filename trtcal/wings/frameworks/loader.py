"""The loader of models of TensorFlow, Keras and PyTorch: an entry point of `trtcal.loaders`."""

from __future__ import annotations

from pathlib import Path

from trtcal.errors import InputError
from trtcal.wings.frameworks.formats import REFUSED, format_of


class FrameworkLoader:
    """Converts TensorFlow's and PyTorch's models: the `Loader` of this wing."""

    def is_model(self, path: Path) -> bool:
        """Tell whether a path looks like a model of these frameworks, also like one that is refused."""
        return path.suffix.lower() in REFUSED or format_of(path) is not None

    def reads(self, path: Path) -> bool:
        """Tell whether `convert` reads a path; `InputError` for a file that is never opened."""
        hint = REFUSED.get(path.suffix.lower())
        if hint and path.is_file():
            raise InputError(f"model {path} is not read: trtcal refuses {path.suffix} files", hint)
        return format_of(path) is not None

    def convert(self, path: Path, trust: bool) -> Path:
        """Return the ONNX file of a model."""
        from trtcal.wings.frameworks.conversion import convert

        form = format_of(path)
        if form is None:
            raise ValueError(f"{path} is of another format")
        return convert(path, form, trust)


LOADER = FrameworkLoader()
