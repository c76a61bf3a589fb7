"""trtcal: calibrate a network to INT8, see what TensorRT really built, and explain the trade-off.

    >>> import trtcal
    >>> digits, data = "samples/digits/digits.onnx", "samples/digits/calibration.npz"
    >>> calibration = trtcal.calibrate(digits, data)
    >>> int8 = trtcal.quantize(digits, calibration)
    >>> comparison = trtcal.compare(digits, {"int8": int8}, "samples/digits/test.npz", rounds=3)
    >>> page = trtcal.report([calibration, comparison])

A name is imported when it is first used. Errors are `TrtcalError`, with a message and a hint.
"""

import os
import sys
from importlib import import_module

if sys.argv[:1] == ["-m"] and "trtcal.cli.main" in sys.orig_argv:
    # `python -m trtcal.cli.main` would import modules from the current folder, which is data: it is
    # code only where this package lies in it.
    _is_safe = sys.flags.isolated or getattr(sys.flags, "safe_path", False)
    if not _is_safe and sys.path[0] != os.path.dirname(os.path.dirname(__file__)):
        del sys.path[0]

from typing import TYPE_CHECKING

from trtcal.errors import __version__ as __version__

if TYPE_CHECKING:
    from trtcal.backends.options import BuildOptions as BuildOptions
    from trtcal.config import Config as Config
    from trtcal.config import ImagesConfig as ImagesConfig
    from trtcal.data import Dataset as Dataset
    from trtcal.data.issues import DataCheck as DataCheck
    from trtcal.data.issues import DataIssue as DataIssue
    from trtcal.errors import BackendError as BackendError
    from trtcal.errors import GateFailed as GateFailed
    from trtcal.errors import InputError as InputError
    from trtcal.errors import ResourceError as ResourceError
    from trtcal.errors import TrtcalError as TrtcalError
    from trtcal.evaluate.ab import ABOptions as ABOptions
    from trtcal.evaluate.ab import ABTest as ABTest
    from trtcal.evaluate.comparison import Comparison as Comparison
    from trtcal.evaluate.search.pipeline import SearchOptions as SearchOptions
    from trtcal.evidence.diagnosis.build_diagnosis import Diagnosis as Diagnosis
    from trtcal.evidence.findings import Finding as Finding
    from trtcal.evidence.manifest import Build as Build
    from trtcal.model import Model as Model
    from trtcal.model import load_model as load_model
    from trtcal.pipeline.api import BuildLog as BuildLog
    from trtcal.pipeline.api import Report as Report
    from trtcal.pipeline.api import ab_test as ab_test
    from trtcal.pipeline.api import build as build
    from trtcal.pipeline.api import calibrate as calibrate
    from trtcal.pipeline.api import check_data as check_data
    from trtcal.pipeline.api import compare as compare
    from trtcal.pipeline.api import diagnose as diagnose
    from trtcal.pipeline.api import improve as improve
    from trtcal.pipeline.api import open_dataset as open_dataset
    from trtcal.pipeline.api import quantize as quantize
    from trtcal.pipeline.api import read_log as read_log
    from trtcal.pipeline.api import report as report
    from trtcal.pipeline.api import run as run
    from trtcal.pipeline.api import search as search
    from trtcal.pipeline.api import sensitivity as sensitivity
    from trtcal.pipeline.job import RunResult as RunResult
    from trtcal.ptq.improver import Improved as Improved
    from trtcal.quantization import Plan as Plan
    from trtcal.quantization import QuantizedModel as QuantizedModel
    from trtcal.ranges import Calibration as Calibration
    from trtcal.runs.history import History as History
    from trtcal.wings.forensics.tvm.fusion import tvm_fusions as tvm_fusions
    from trtcal.wings.forensics.tvm.instrument import tvm_checkpoints as tvm_checkpoints
    from trtcal.wings.frameworks.pytorch import from_torch as from_torch

_HOMES = {
    "backends.options": ("BuildOptions",),
    "config": ("Config", "ImagesConfig"),
    "data": ("Dataset",),
    "data.issues": ("DataCheck", "DataIssue"),
    "errors": ("BackendError", "GateFailed", "InputError", "ResourceError", "TrtcalError"),
    "evaluate.comparison": ("Comparison",),
    "evaluate.ab": ("ABOptions", "ABTest"),
    "evaluate.search.pipeline": ("SearchOptions",),
    "evidence.diagnosis.build_diagnosis": ("Diagnosis",),
    "evidence.findings": ("Finding",),
    "evidence.manifest": ("Build",),
    "model": ("Model", "load_model"),
    "pipeline.api": (
        "BuildLog",
        "Report",
        "ab_test",
        "build",
        "calibrate",
        "check_data",
        "compare",
        "diagnose",
        "improve",
        "open_dataset",
        "quantize",
        "read_log",
        "report",
        "run",
        "search",
        "sensitivity",
    ),
    "pipeline.job": ("RunResult",),
    "ptq.improver": ("Improved",),
    "quantization": ("Plan", "QuantizedModel"),
    "ranges": ("Calibration",),
    "runs.history": ("History",),
}
"""Module -> the names that stand here; the same as the imports for type checkers."""

_OF_WINGS = ("from_torch", "tvm_checkpoints", "tvm_fusions")
__all__ = sorted([*(name for names in _HOMES.values() for name in names), *_OF_WINGS])


def __getattr__(name: str) -> object:
    for home, names in _HOMES.items():
        if name in names:
            value = getattr(import_module(f"trtcal.{home}"), name)
            globals()[name] = value
            return value
    if not name.startswith("_"):
        return _extension(name)
    raise AttributeError(f"module 'trtcal' has no attribute {name!r}")


def _extension(name: str) -> object:
    from trtcal.extensions import NAMES, entry_points, load

    if name not in __all__ and name not in entry_points(NAMES):
        raise AttributeError(f"module 'trtcal' has no attribute {name!r}")
    globals()[name] = load(NAMES, name, f"calls of trtcal.{name}")
    return globals()[name]


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
