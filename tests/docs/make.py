"""Make the files that the examples of a page start from: `python -m tests.docs.make NAME`.

A page asks for them with `<!-- run: python -m tests.docs.make NAME -->`. Each maker is a function here
that writes into the current folder; its name is the NAME, with `-` for `_`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

MAKERS: dict[str, Callable[[], None]] = {}


def maker(make: Callable[[], None]) -> Callable[[], None]:
    """Register a maker under its name."""
    MAKERS[make.__name__.replace("_", "-")] = make
    return make


@maker
def model() -> None:
    """Write model.onnx, calibration.npz and test.npz: the sample of digits under short names."""
    import shutil

    for source, name in (("digits", "model"), ("calibration", "calibration"), ("test", "test")):
        suffix = ".onnx" if name == "model" else ".npz"
        shutil.copy(Path("samples/digits") / f"{source}{suffix}", name + suffix)


@maker
def costly_layer() -> None:
    """Write model.onnx, calibration.npz and test.npz: digits with a tensor too wide for INT8."""
    from tests.docs import costly_layer

    costly_layer.make(Path())


@maker
def slow_engine() -> None:
    """Write int8/ and fp16/ with layers and profile, and the logs int8_only.log and skipped.log."""
    from tests.docs import slow_engine

    slow_engine.make(Path())


if __name__ == "__main__":
    for name in sys.argv[1:]:
        MAKERS[name]()
