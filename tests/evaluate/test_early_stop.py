"""Variants that cannot win any more stop early; the verdict and all other figures stay the same."""

import json
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from tests.fixtures.commands import SAMPLES, shows, succeed
from tests.fixtures.networks import linear_classifier
from tests.fixtures.schema import schema_errors
from tests.fixtures.slow import SLOW
from trtcal.config import read_config
from trtcal.data import Subset, open_dataset
from trtcal.documents import read_json
from trtcal.evaluate.collectors import CollectSettings
from trtcal.evaluate.comparison import CompareSettings, Comparison, compare, notes
from trtcal.evaluate.replay import silent
from trtcal.evaluate.variant_limits import Contest, falls_short
from trtcal.evaluate.variants import Variant, open_variant
from trtcal.limits import DO_NOT, WITH_CARE, parse_limits
from trtcal.model import load_model
from trtcal.pipeline import stages
from trtcal.pipeline.inputs import FP16_VARIANT, open_inputs
from trtcal.reporting.verdict import judge
from trtcal.runs.figures import figures_of_run

COUNT, BATCH = 512, 32
CLASSES = {"scores": "classes"}
EVERYONE = ((1, "v1"), (2, "v2"))


class Counting(Variant):
    """A variant that counts the samples that it runs."""

    def runner(self, names):
        run = super().runner(names)

        def counted(feeds):
            ran[self.name] += len(feeds["x"])
            return run(feeds)

        return counted


ran = Counter()


def compared(folder, seed, noise, limits, of):
    """Compare classifiers whose weights have noise, with labels that the first one knows mostly."""
    rng = np.random.default_rng(seed)
    weights = rng.standard_normal((8, 16))
    paths = [linear_classifier(folder / "fp32.onnx", weights)]
    for number, scale in enumerate(noise, 1):
        moved = weights + scale * rng.standard_normal(weights.shape)
        paths.append(linear_classifier(folder / f"v{number}.onnx", moved))
    x = rng.standard_normal((COUNT, 16)).astype(np.float32)
    labels = (x @ weights.T + rng.standard_normal((COUNT, 8))).argmax(1)
    np.savez(folder / "data.npz", x=x, labels=labels)
    data = open_dataset(folder / "data.npz", load_model(paths[0]))
    first, *others = (Counting(**vars(open_variant(path))) for path in paths)
    question = CollectSettings(contest=Contest(limits, of))
    ran.clear()
    return data, compare(first, others, data, limits, CompareSettings(BATCH, 2, question))


def lasting(row):
    return {**row.lasting(), "stopped": None}


@pytest.mark.parametrize(
    ("seed", "noise", "limits", "word", "stopped"),
    [
        (0, (0.01, 0.5, 1.0), (), WITH_CARE, {"v2", "v3"}),
        (2, (1.0, 0.1, 0.3), ("agreement >= -1.0",), DO_NOT, {"v1", "v3"}),
        (4, (0.0, 1.0, 0.5), ("agreement >= 95", "top1_drop <= 3"), WITH_CARE, {"v2", "v3"}),
    ],
)
def test_the_verdict_is_that_of_all_samples(tmp_path, seed, noise, limits, word, stopped):
    limits = parse_limits(limits)
    scene = tmp_path, seed, noise, limits
    _, whole = compared(*scene, ())
    data, made = compared(*scene, [*enumerate(("v1", "v2", "v3"), 1)])
    assert {row.name for row in made.rows if row.stopped} == stopped
    assert judge(made).word == word
    for answer in ("word", "variant", "sentence", "limits"):
        assert getattr(judge(made), answer) == getattr(judge(whole), answer)
    assert falls_short(made) == falls_short(whole)
    best = next(row for row in whole.rows if row.name == judge(whole).variant)
    rows = (row if row is not best else replace(row, stopped="early") for row in whole.rows)
    assert judge(replace(whole, rows=(*rows,))).variant != best.name
    for row, other in zip(made.rows, whole.rows, strict=True):
        samples = row.accuracy.samples
        assert row is made.rows[0] or ran[row.name] == samples
        if not row.stopped:
            assert lasting(row) == lasting(other)
            continue
        assert f"stopped after {samples} of {COUNT} samples" in row.stopped
        assert f"{row.name}: {row.stopped}" in notes(made)
        part = compare(
            *(open_variant(tmp_path / "fp32.onnx"), [open_variant(tmp_path / f"{row.name}.onnx")]),
            Subset("", data, ((0, samples),)),
            limits,
            CompareSettings(BATCH, 2),
        )
        assert part.rows[1].accuracy == row.accuracy
    document = json.loads(json.dumps(made.to_document()))
    assert [row.stopped for row in Comparison.from_document(document).rows] == [
        row.stopped for row in made.rows
    ]


def contested(
    limits, losses, *, seed=0, of=EVERYONE, kinds=CLASSES, out=(), broken=(), batch=BATCH
):
    """Hold a contest of candidates that each lose a share of all decisions, each by its own chance."""
    rng = np.random.default_rng(seed)
    contest = Contest(parse_limits(limits), of)
    contest.out |= {*out}
    replayed = SimpleNamespace(
        task=SimpleNamespace(kinds=kinds), dataset=range(COUNT), not_finite=Counter(broken)
    )
    for replayed.samples in range(batch, COUNT + 1, batch):
        replayed.distinct = replayed.samples
        running = {place: losses[place] for place in (0, *contest.running)}
        figures = {n: {"agreement": 1.0 * (rng.random(batch) >= x)} for n, x in running.items()}
        contest.add(figures, replayed)
    return contest.stopped


FAR, SEEDS = (0.0, 0.0, 0.5), range(24)


@pytest.mark.parametrize(
    ("limits", "more", "stopped"),
    [
        (["agreement >= -1.0"], {}, {2}),
        (["agreement >= 99"], {}, {2}),
        ([], {}, {2}),
        (["agreement >= -1.0", "latency_p50 <= 9"], {}, set()),
        (["agreement >= -1.0", "sqnr_db >= 30"], {}, set()),
        (["v2: agreement >= -1.0"], {}, set()),
        (["agreement == 100"], {}, set()),
        (["agreement@slices >= -1.0"], {}, set()),
        (["agreement >= -60.0"], {}, set()),
        ([], {"kinds": {**CLASSES, "more": "values"}}, set()),
        ([], {"of": EVERYONE[1:]}, set()),
        ([], {"batch": COUNT}, set()),
        ([], {"out": [1]}, set()),
        ([], {"out": [2]}, set()),
        ([], {"broken": [1]}, set()),
        ([], {"broken": [2]}, set()),
    ],
)
def test_only_who_cannot_win_stops(limits, more, stopped):
    assert {*contested(limits, FAR, **more)} == stopped


@pytest.mark.parametrize(
    ("losses", "least", "most"),
    [
        ((0.0, 0.1, 0.1), 0, 1),  # both break the limit, neither is better
        ((0.0, 0.0, 0.01), 0, 1),  # one is better, neither breaks the limit
        ((0.0, 0.05, 0.25), 23, 24),
    ],
)
def test_looking_early_errs_in_no_more_than_5_percent(losses, least, most):
    stopped = [bool(contested(["agreement >= -1.0"], losses, seed=seed)) for seed in SEEDS]
    assert least <= sum(stopped) <= most


CONFIG = f"""
model = "{SAMPLES}/digits/digits.onnx"
[calibration]
data = "{SAMPLES}/digits/calibration.npz"
methods = ["minmax", "percentile"]
improve = "off"
[calibration.parameters.percentile]
percentile = 60.0
[evaluation]
data = "{SAMPLES}/digits/test.npz"
rounds = 2
layer_samples = 4
[build]
targets = ["cpu"]
"""


@pytest.mark.parametrize(
    ("more", "running"),
    [
        ("", {1: "int8-minmax", 3: "mixed"}),
        ("stop_early = false", {}),
        ('limits = ["agreement >= -1.0"]', {1: "int8-minmax", 3: "mixed"}),
        ('limits = ["agreement >= -1.0", "data_issues == 0"]', {}),
    ],
)
def test_a_run_stops_its_candidates_where_it_may(tmp_path, monkeypatch, more, running):
    before, after = (more, "") if more.startswith("limits") else ("", more)
    text = CONFIG.replace("[build]", f"{after}\n[build]").replace('["cpu"]', '["cpu", "sm89"]')
    (tmp_path / "trtcal.toml").write_text(f"{before}\n{text}")
    calls = []
    monkeypatch.setattr(stages, "compare", lambda *arguments: calls.append(arguments))
    others = [SimpleNamespace(name=name) for name in ("int8-minmax", FP16_VARIANT, "mixed")]
    inputs = open_inputs(read_config(tmp_path / "trtcal.toml"))
    stages._compare(inputs, (None, others, ()), SimpleNamespace(progress=silent))
    assert calls[0][4].wanted.contest.running == running


@SLOW
def test_a_run_says_who_was_stopped(tmp_path, capsys):
    (tmp_path / "trtcal.toml").write_text(CONFIG)
    out = succeed(capsys, "run", tmp_path / "trtcal.toml", "--no-history", "-o", tmp_path / "run")
    report = read_json(tmp_path / "run" / "report.json")
    page = (tmp_path / "run" / "report.html").read_text()
    assert report["measured"]["verdict"]["variant"] == "int8-minmax"
    assert schema_errors(report) == []
    row = report["comparison"]["rows"][2]
    assert (row["accuracy"]["samples"], row["layers"]) == (128, None)
    assert ("int8-percentile", "top1") not in figures_of_run(report)
    for shown in (" ".join(out.split()), page):
        shows(shown, "int8-percentile: stopped after 128 of 500 samples", "int8-minmax loses less")
