"""Makes the figures of docs/concepts, by trtcal's own functions: `python -m docs.figures [FOLDER]`.

Each function below is one figure and returns an SVG document. The network is `samples/digits`; what a
compiler made comes from `docs/images/concepts/compiled.json`, see `docs/compiled.py`.
The figures of graphs are in `docs/graph_figures.py`.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import trtcal
from calibrators import Histogram, create
from calibrators.methods import linear_bins, squared_errors
from docs.drawing import BLUE, BROWN, GREEN, PALE_BLUE, PALE_BROWN, SMALL, drawn
from docs.graph_figures import GRAPHS
from trtcal.calibration import observe
from trtcal.quantization import find_layers, prepare, tensors_to_observe
from trtcal.reporting.svg import INK, LINE, MUTED
from trtcal.stats import Interval, one_sided, paired_difference, proportion, unseen

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs" / "images" / "concepts"
DIGITS = ROOT / "samples" / "digits"
TENSOR = "separable/leaky_out"
METHODS = ("minmax", "percentile", "entropy", "mse")
MARKS = {
    "minmax": (INK, "-", "o"),
    "percentile": (BLUE, "--", "s"),
    "entropy": (BROWN, "-.", "^"),
    "mse": (GREEN, ":", "D"),
}
LEVEL, LIMIT = one_sided(0.95), -1.0


@functools.cache
def histograms(data: str) -> dict[str, Histogram]:
    """Return the histograms of the digits' tensors over one of its data files."""
    model = trtcal.load_model(DIGITS / "digits.onnx")
    prepared = prepare(model)
    dataset = trtcal.open_dataset(DIGITS / data, model)
    return observe(prepared, dataset, tensors_to_observe(find_layers(prepared))).histograms


def amax(method: str, histogram: Histogram) -> float:
    """Return the range that a method chooses."""
    return create(method)(histogram).amax


def sqnr_db(histogram: Histogram, amaxes: np.ndarray) -> np.ndarray:
    """Return signal to quantization noise of each range, in dB, shape of `amaxes`."""
    low, high, counts = histogram.magnitudes()
    signal = (counts * ((low + high) / 2) ** 2).sum()
    return 10 * np.log10(signal / squared_errors(histogram, np.atleast_1d(amaxes)))


def _draw_ranges(axes: Axes) -> None:
    histogram = histograms("calibration.npz")[TENSOR]
    bins = 120
    edges = np.linspace(0.0, histogram.amax, bins + 1)
    axes.stairs(linear_bins(histogram, bins), edges, fill=True, color=LINE)
    for method in METHODS:
        end = amax(method, histogram)
        quality = sqnr_db(histogram, np.array([end]))[0]
        color, dashes, _ = MARKS[method]
        label = f"{method}: {end:.2f}, {quality:.1f} dB"
        axes.axvline(end, color=color, linestyle=dashes, lw=2, label=label)
    axes.set_yscale("log")
    axes.set(xlabel=f"|x| of {TENSOR}", ylabel="values", xlim=(0, histogram.amax * 1.03))
    axes.legend(loc="lower center", bbox_to_anchor=(0.47, 1.0), ncols=2)


def calibration_ranges() -> str:
    """Draw a real tensor's histogram, and where each method ends its range."""

    def draw(figure: Figure) -> None:
        _draw_ranges(figure.add_axes((0.13, 0.15, 0.84, 0.66)))

    return drawn(3.6, draw)


def clipping_db(histogram: Histogram, amaxes: np.ndarray) -> np.ndarray:
    """Return signal to the noise that clipping alone makes, in dB; infinite without clipping."""
    low, high, counts = histogram.magnitudes()
    values = (low + high) / 2
    lost = [(counts * np.maximum(values - end, 0.0) ** 2).sum() for end in amaxes]
    with np.errstate(divide="ignore"):
        return 10 * np.log10((counts * values**2).sum() / np.array(lost))


def rounding_db(histogram: Histogram, amaxes: np.ndarray) -> np.ndarray:
    """Return signal to the noise of rounding to a step, amax / 127: step^2 / 12 for each value."""
    low, high, counts = histogram.magnitudes()
    signal = (counts * ((low + high) / 2) ** 2).sum() / counts.sum()
    return 10 * np.log10(signal / ((amaxes / 127) ** 2 / 12))


def _draw_error(axes: Axes) -> None:
    histogram = histograms("calibration.npz")[TENSOR]
    ends = np.linspace(0.2, 1.0, 200) * histogram.amax
    axes.plot(ends, sqnr_db(histogram, ends), color=INK, lw=2, label="both: what INT8 gives")
    axes.plot(ends, rounding_db(histogram, ends), color=MUTED, ls="--", label="rounding alone")
    axes.plot(ends, clipping_db(histogram, ends), color=MUTED, ls=":", label="clipping alone")
    for method in METHODS:
        end = amax(method, histogram)
        color, _, mark = MARKS[method]
        place = (end, sqnr_db(histogram, np.array([end]))[0])
        axes.plot(*place, mark, color=color, ms=8, label=method)
    axes.set(ylim=(15, 50), xlabel=f"end of the range of {TENSOR}", ylabel="SQNR, dB")
    axes.legend(loc="lower center", bbox_to_anchor=(0.45, 1.0), ncols=2)


def calibration_error() -> str:
    """Draw the error of one tensor against the end of its range: rounding against clipping."""

    def draw(figure: Figure) -> None:
        _draw_error(figure.add_axes((0.13, 0.13, 0.84, 0.58)))

    return drawn(4.2, draw)


ROWS: dict[str, dict[str, float]] = {
    "minmax": {},
    "percentile": {},
    "percentile 99.99": {"percentile": 99.99},
    "entropy": {},
    "mse": {},
}


def _draw_outlier(axes: Axes) -> None:
    clean, spoiled = (histograms(name)["image"] for name in ("calibration.npz", "glitch.npz"))
    for row, (name, parameters) in enumerate(ROWS.items()):
        chosen = create(name.partition(" ")[0], **parameters)
        ends = [chosen(histogram).amax for histogram in (clean, spoiled)]
        quality = sqnr_db(clean, np.array(ends))
        axes.plot(ends, [row, row], color=LINE, lw=3, zorder=1)
        labels = ("clean data", "three saturated pixels") if row == 0 else (None, None)
        axes.plot(ends[0], row, "o", mfc="white", mec=INK, ms=9, label=labels[0])
        axes.plot(ends[1], row, "o", color=BROWN, ms=7, label=labels[1])
        text = f"{ends[1]:.4g}: {quality[1]:.0f} dB (clean: {quality[0]:.0f} dB)"
        axes.text(0.62, row - 0.3, text, fontsize=SMALL, va="center")
    axes.set_xscale("log")
    axes.legend(loc="lower center", bbox_to_anchor=(0.35, 0.97), ncols=2)
    axes.set_yticks(range(len(ROWS)), ROWS)
    axes.set(xlim=(0.5, 400), ylim=(len(ROWS) - 0.6, -0.7), xlabel="end of the range of image")


def calibration_outlier() -> str:
    """Draw what three saturated pixels of 32,768 do to the range that each method chooses."""

    def draw(figure: Figure) -> None:
        _draw_outlier(figure.add_axes((0.26, 0.15, 0.71, 0.76)))

    return drawn(3.8, draw)


def difference(lost: int, won: int, samples: int) -> Interval:
    """Return the candidate's change in points, with the interval that a limit is held against."""
    return paired_difference(lost, won, samples, LEVEL, strict=True).scaled(-100.0)


@functools.cache
def _growing() -> list[tuple[int, Interval]]:
    """Return intervals as samples are added, where 0.8 % are lost and 0.5 % won: -0.3 points."""
    fate = np.random.default_rng(4).random(20_000)
    sizes = [100, 200, 400, 800, 1600, 3200, 6400, 12800]
    return [
        (n, difference(int((fate[:n] < 0.008).sum()), int((fate[:n] > 0.995).sum()), n))
        for n in sizes
    ]


def _draw_verdict(axes: Axes) -> None:
    axes.axhspan(-3.5, LIMIT, color=PALE_BROWN)
    axes.axhspan(LIMIT, 6, color=PALE_BLUE)
    axes.axhline(LIMIT, color=INK, lw=1)
    for number, (_, one) in enumerate(_growing()):
        holds = one.low >= LIMIT
        ends = [[one.value - one.low], [one.high - one.value]]
        color, mark = (BLUE, "o") if holds else (MUTED, "s")
        axes.errorbar(number, one.value, ends, fmt=mark, color=color, capsize=4, lw=2)
        word = "holds" if holds else "undecided"
        axes.text(number, 3.2, word, ha="center", va="bottom", fontsize=SMALL, rotation=90)
    axes.text(7.5, -1.1, "limit: -1 point", ha="right", va="top", fontsize=SMALL)
    axes.set_xticks(range(len(_growing())), [f"{n:,}" for n, _ in _growing()], rotation=30)
    axes.set(ylim=(-3.5, 6), xlim=(-0.6, 7.6), xlabel="samples", ylabel="change of top-1, points")


def statistics_verdict() -> str:
    """Draw the interval of a small loss as samples are added, against a limit."""

    def draw(figure: Figure) -> None:
        _draw_verdict(figure.add_axes((0.13, 0.24, 0.85, 0.74)))

    return drawn(3.6, draw)


def _draw_unseen(axes: Axes) -> None:
    sizes = np.geomspace(50, 20_000, 60)
    axes.plot(sizes, [100 * unseen(int(n), LEVEL) for n in sizes], color=BLUE, lw=2)
    for n in (100, 300, 1000, 3000, 10_000):
        loss = 100 * unseen(n, LEVEL)
        axes.plot(n, loss, "o", color=BLUE, ms=7)
        text = f"{n:,}: {loss:.1g}"
        axes.annotate(text, (n, loss), (6, 5), textcoords="offset points")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set(xlabel="samples, all of them with the same result", xlim=(50, 60_000))
    axes.set_ylabel("loss not excluded, points")
    axes.set_yticks([0.03, 0.1, 0.3, 1, 3], ["0.03", "0.1", "0.3", "1", "3"])


def statistics_unseen() -> str:
    """Draw the loss that a test without any difference leaves possible."""

    def draw(figure: Figure) -> None:
        _draw_unseen(figure.add_axes((0.14, 0.17, 0.83, 0.8)))

    return drawn(3.2, draw)


def _apart(right: tuple[int, int], samples: int) -> Interval:
    """Return the difference of two shares as if of two sets of samples (Newcombe's square-and-add)."""
    a, b = (proportion(one, samples, LEVEL) for one in right)
    value = b.value - a.value
    low = value - np.hypot(b.value - b.low, a.high - a.value)
    high = value + np.hypot(b.high - b.value, a.value - a.low)
    return Interval(100 * value, 100 * low, 100 * high)


def _draw_paired(axes: Axes) -> None:
    lost, won, samples = 8, 6, 2000
    rows = {
        "paired:\nsame samples": difference(lost, won, samples),
        "unpaired:\ntwo accuracies": _apart((1900, 1900 - lost + won), samples),
    }
    for row, one in enumerate(rows.values()):
        ends = [[one.value - one.low], [one.high - one.value]]
        axes.errorbar(one.value, row, xerr=ends, fmt="o", color=(BLUE, BROWN)[row], capsize=5, lw=2)
        text = f"{one.value:+.1f} points, {one.low:+.2f} to {one.high:+.2f}"
        axes.text(one.value, row - 0.2, text, ha="center", fontsize=SMALL)
    axes.axvline(LIMIT, color=INK, lw=1)
    axes.text(LIMIT + 0.03, 1.45, "limit: -1 point", fontsize=SMALL)
    axes.set_yticks(range(2), rows)
    axes.set(ylim=(1.6, -0.5), xlim=(-1.6, 1.4), xlabel="change of top-1, points")


def statistics_paired() -> str:
    """Draw one result read twice: sample by sample, and as two accuracies."""

    def draw(figure: Figure) -> None:
        _draw_paired(figure.add_axes((0.26, 0.24, 0.71, 0.73)))

    return drawn(2.4, draw)


FIGURES: dict[str, Callable[[], str]] = {
    "calibration-ranges": calibration_ranges,
    "calibration-error": calibration_error,
    "calibration-outlier": calibration_outlier,
    "statistics-verdict": statistics_verdict,
    "statistics-unseen": statistics_unseen,
    "statistics-paired": statistics_paired,
    **GRAPHS,
}


def write(folder: Path = FOLDER) -> None:
    """Write every figure into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, draw in FIGURES.items():
        (folder / f"{name}.svg").write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    write(*(Path(one) for one in sys.argv[1:2]))
