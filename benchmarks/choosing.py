"""Choosing every range of densenet121 from its histograms, for each method.

    python -m benchmarks.choosing [network] [--samples N]

Prints seconds for each method, and what the observation that all of them share took. No method runs
the network.
"""

from __future__ import annotations

import argparse

import calibrators
from benchmarks.calibration_split import scene, timed
from benchmarks.int8_speed import describe_machine
from calibrators.counting import load_kernels
from trtcal.calibration import ObserveOptions, calibrate, observe


def main() -> None:
    """Print the seconds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("network", nargs="?", default="densenet121")
    parser.add_argument("--samples", type=int, default=64)
    options = parser.parse_args()
    load_kernels()
    with scene(options.network, options.samples, free=False) as (model, dataset, tensors):
        observed, seen = timed(lambda: observe(model, dataset, tensors, ObserveOptions(threads=1)))
    print(f"# {describe_machine()}, {options.network}, {options.samples} samples")
    print(f"observing {len(seen.histograms)} tensors once: {observed:.1f} s")
    for method in calibrators.names():
        seconds, chosen = timed(lambda name=method: calibrate(seen, name))  # type: ignore[misc]
        print(f"{method:12} {seconds:.2f} s for {len(chosen.ranges)} ranges")


if __name__ == "__main__":
    main()
