"""Print as JSON what one version of TensorRT has: `python -m tests.tensorrt.probe MODULE`.

It runs in a process of its own for each version. It makes no builder and no runtime: without a GPU the
one cannot be made, and the other crashes.
"""

import importlib
import json
import re
import sys
from dataclasses import asdict

from tests.calibrators.bindings import calls
from tests.tensorrt.claims import TOUCHED
from tests.tensorrt.touched import called
from trtcal.backends.options import CALIBRATOR_CLASSES, ROUTES
from trtcal.backends.tensorrt_network import Features, api, calibrator_for
from trtcal.errors import BackendError
from trtcal.wings.devices.worker.tensorrt_routes import (
    CALIBRATORS,
    Messages,
    Routed,
    cache_of_ranges,
)

SIGNATURE = re.compile(r"^(?:\d+\. )?\w+\((.*)\) -> ", re.MULTILINE)
SEVERITIES = ("INTERNAL_ERROR", "ERROR", "WARNING", "INFO", "VERBOSE")
RANGES = {"images": 1.0, "(Unnamed Layer* 64) [Shuffle]_output": 255 * 2048.5 / 2048}


def has(module: object, path: str) -> bool:
    for name in path.split("."):
        if not hasattr(module, name):
            return False
        module = getattr(module, name)
    return True


def signatures(module: object, path: str) -> list[str]:
    """Return the lines of documentation that say how a function or class is called."""
    for name in path.split("."):
        module = getattr(module, name)
    function = module.__init__ if isinstance(module, type) else module
    return SIGNATURE.findall(function.__doc__ or "")


def refused(features: Features) -> list[str]:
    """Return the routes that our code refuses for this version."""
    found = []
    for route in ROUTES[1:]:
        try:
            features.check(route, CALIBRATOR_CLASSES[0])
        except BackendError:
            found.append(route)
    return found


def answers(trt: object, kind: str) -> dict[str, str]:
    """Return what a real calibrator object of ours, with ranges, returns to TensorRT."""
    made = calibrator_for(trt, {"route": "cache", "kind": kind, "ranges": RANGES})
    cache = calls(made).read_calibration_cache()  # through the bindings, as a builder does
    made.finish()
    return {"algorithm": made.get_algorithm().name, "cache": cache.decode()}


def worker_answers(trt: object, kind: str) -> dict[str, str]:
    """Return what a calibrator object of a device's worker, with ranges, returns to TensorRT."""
    routed = Routed(trt, None, Messages(trt, print))
    routed.cache = cache_of_ranges(trt.__version__, kind, RANGES)
    made = routed._calibrator(kind)
    cache = calls(made).read_calibration_cache()
    return {"algorithm": made.get_algorithm().name, "cache": cache.decode()}


def worker_log(trt: object) -> list[str]:
    """Return what a logger of a device's worker makes of a message of each severity."""
    lines = []
    logger = Messages(trt, lines.append).logger
    for name in SEVERITIES:
        logger.log(getattr(trt.ILogger.Severity, name), name.lower())
    return lines


def check_settings() -> None:
    """Raise what Polygraphy says if it does not know what our routes ask of it."""
    from polygraphy.backend.trt import CreateConfig

    CreateConfig(int8=True, fp16=False, precision_constraints="obey", calibrator=object())


def main() -> None:
    trt = importlib.import_module(sys.argv[1])
    features = api(trt)
    if features.calibrators:
        check_settings()
    found = {
        "version": str(trt.__version__),
        "has": [path for path in TOUCHED if has(trt, path)],
        "calls": [
            (*call, signatures(trt, call[0])) for call in sorted(called()) if has(trt, call[0])
        ],
        "features": asdict(features),
        "refused": refused(features),
        "answers": {kind: answers(trt, kind) for kind in features.calibrators},
        "log": worker_log(trt),
        "worker": {kind: worker_answers(trt, kind) for kind in CALIBRATORS if features.calibrators},
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
