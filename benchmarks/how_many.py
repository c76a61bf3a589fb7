"""How many calibration samples networks need, and how sure that is.

    python -m benchmarks.how_many MODEL DATA [MODEL DATA ...] [--methods percentile minmax]

DATA is whatever `trtcal calibrate --data` takes. Prints, for each network and method, the seconds it
took, and by number of samples: the mean loss of the series on the held-back samples, and how much more
that is than with most samples with its 95 % interval; then what trtcal reports.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from statistics import mean

from benchmarks.calibration_split import timed
from benchmarks.int8_speed import describe_machine
from trtcal.data import open_dataset
from trtcal.evaluate.learning_curve import LearningCurve, learning_curve
from trtcal.evaluate.replay import silent
from trtcal.model import load_model
from trtcal.quantization import prepare


def show(seconds: float, curve: LearningCurve) -> None:
    """Print one curve."""
    method = curve.head["method"]
    print(f"  {method}, {curve.measure} on {curve.held_back} samples, {seconds:.0f} s")
    for point in curve.points:
        excess = point.excess
        against = f"{excess.value:+7.1%} ({excess.low:+.1%} to {excess.high:+.1%})"
        print(f"  {point.samples:5} {mean(point.losses):9.3g}  {against}")
    for line in (curve.sentence, *(f"warning: {text}" for text in curve.warnings)):
        print(f"    {line}")


def main() -> None:
    """Print all curves."""
    parser = argparse.ArgumentParser()
    parser.add_argument("pairs", nargs="+", type=Path, metavar="MODEL DATA")
    parser.add_argument("--methods", nargs="+", default=["percentile", "minmax"])
    options = parser.parse_args()
    print(f"# {describe_machine()}")
    for path, data in zip(options.pairs[::2], options.pairs[1::2], strict=True):
        model = load_model(path)
        dataset, prepared = open_dataset(data, model), prepare(model)
        print(f"{path.stem}, {len(dataset)} samples")
        for method in options.methods:
            show(*timed(partial(learning_curve, prepared, dataset, method, {}, silent)))


if __name__ == "__main__":
    main()
