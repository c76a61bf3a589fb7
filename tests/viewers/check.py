"""Run the tests of exports with the viewers that they are for: `make test-viewers`."""

import sys

from tests.frameworks.check import check

VIEWERS = ("ai-edge-model-explorer", "model-explorer-onnx", "netron")

if __name__ == "__main__":
    sys.exit(check("viewers", ".", "pytest", "hypothesis", "playwright", *VIEWERS))
