"""Print as JSON what one version of TensorRT has: `python -m tests.tensorrt.probe MODULE`.

It runs in a process of its own for each version. It makes no builder and no runtime: without a GPU the
one cannot be made, and the other crashes.
"""

import importlib
import json
import sys
from dataclasses import asdict

from tests.calibrators.bindings import calls
from tests.tensorrt.claims import CLAIMS
from trtcal.backends.options import CALIBRATOR_CLASSES, ROUTES
from trtcal.backends.tensorrt_network import Features, api, calibrator_for
from trtcal.errors import BackendError

RANGES = {"images": 1.0, "(Unnamed Layer* 64) [Shuffle]_output": 255 * 2048.5 / 2048}


def has(module: object, path: str) -> bool:
    for name in path.split("."):
        if not hasattr(module, name):
            return False
        module = getattr(module, name)
    return True


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
        "has": [path for path in CLAIMS if has(trt, path)],
        "features": asdict(features),
        "refused": refused(features),
        "answers": {kind: answers(trt, kind) for kind in features.calibrators},
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
