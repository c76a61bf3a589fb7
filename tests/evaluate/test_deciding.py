"""A/B tests from models and files: figures, slices, own metrics, early stops, and the command."""

import json

import numpy as np
import pytest
from scipy import stats

from tests.fixtures.commands import answer, succeed
from tests.fixtures.fails import fails
from tests.fixtures.networks import linear_classifier
from trtcal.cli.main import run_command
from trtcal.data import open_dataset
from trtcal.data.slices import read_slices
from trtcal.errors import InputError
from trtcal.evaluate.ab import ABOptions, InterimAnalyses, Question, ab_test
from trtcal.evaluate.ab_rule import rule_for
from trtcal.evaluate.metrics import load_metric
from trtcal.evaluate.variants import open_variant
from trtcal.limits import DO_NOT, INCONCLUSIVE, SHIP, parse_limits
from trtcal.model import load_model
from trtcal.stats import sequential_levels, spent

CLASSES, SAMPLES = 8, 400


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Two classifiers, the second a little off, and data whose labels the first one knows best."""
    folder = tmp_path_factory.mktemp("ab")
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((CLASSES, 16)).astype(np.float32)
    noise = rng.standard_normal(weights.shape).astype(np.float32)
    for name, scale in (("good", 0.0), ("near", 0.002), ("bad", 1.5)):
        linear_classifier(folder / f"{name}.onnx", weights + scale * noise)
    x = rng.standard_normal((SAMPLES, 16)).astype(np.float32)
    np.savez(folder / "data.npz", x=x, labels=(x @ weights.T).argmax(1))
    tiers = np.where(np.arange(SAMPLES) % 4 == 0, "low", "high")
    lines = ["tier,file", *(f"{tier},{i}.png" for i, tier in enumerate(tiers))]
    (folder / "slices.csv").write_text("\n".join(lines))
    (folder / "own.py").write_text(
        "def metric(outputs, labels):\n"
        "    scores = next(iter(outputs.values()))\n"
        "    print('noise')\n"
        "    return {'margin': scores.max() - scores.mean(), 'right': scores.argmax() == labels[0]}\n"
    )
    return folder


def compared(place, candidate, *limits, metric=None, **more):
    model = load_model(place / "good.onnx")
    both = [
        open_variant(place / f"{name}.onnx", name=f"{side} {name}")
        for side, name in (("A", "good"), ("B", candidate))
    ]
    dataset = open_dataset(place / "data.npz", model)
    question = Question(parse_limits(limits or ["top1 >= -2"]), metric)
    return ab_test(*both, dataset, question, ABOptions(**more))


def test_the_same_model_ships_and_a_bad_one_does_not(place):
    assert compared(place, "good").verdict.word == SHIP
    result = compared(place, "bad")
    assert result.verdict.word == DO_NOT
    top1 = result.verdict.answers[0]
    assert (top1.name, top1.baseline, top1.samples) == ("top1", 100.0, SAMPLES)


def test_figures_are_those_of_numpy(place):
    answers = {one.name: one for one in compared(place, "bad").verdict.answers}
    data = np.load(place / "data.npz")
    session = open_variant(place / "bad.onnx").session
    said = session.run(None, {"x": data["x"]})[0].argmax(1)
    assert answers["top1"].candidate == pytest.approx(100 * (said == data["labels"]).mean())
    assert answers["agreement"].candidate == answers["top1"].candidate  # A is always right here


def test_slices_and_own_metrics_are_asked_about_too(place):
    slices = read_slices(place / "slices.csv", SAMPLES)
    assert {name: int(where.sum()) for name, where in slices.items()} == {
        "tier=low": SAMPLES // 4,
        "tier=high": SAMPLES * 3 // 4,
    }
    limits = ("right >= -0.05", "right@slices >= -0.05")
    result = compared(place, "bad", *limits, slices=slices, own=load_metric(place / "own.py"))
    names = [one.name for one in result.verdict.answers]
    assert names[0] == "right"
    assert {"margin", "right of tier=low", "right of tier=high"} <= set(names)
    assert result.verdict.word == DO_NOT


def test_a_sequential_test_stops_when_it_is_decided(place):
    early = compared(place, "bad", sequential=True)
    assert early.verdict.word == DO_NOT
    assert early.seen < early.samples
    assert [one["word"] for one in early.interim[:-1]] == [INCONCLUSIVE] * (len(early.interim) - 1)
    full = compared(place, "good", "top1 >= -0.001", sequential=True)
    assert (full.seen, full.verdict.word) == (SAMPLES, INCONCLUSIVE)
    assert len(full.interim) == 5


def test_the_error_rate_is_spent_slowly_and_whole():
    rates = [spent(0.05, part) for part in (0, 0.2, 0.4, 0.6, 0.8, 1)]
    assert rates == sorted(rates)
    assert (rates[0], rates[-1]) == (0.0, pytest.approx(0.05))
    assert rates[1] < 1e-4


def test_the_error_rate_of_looking_early_is_kept():
    """B is worse by just the margin: to ship it is an error, and so is it in every look."""
    rng = np.random.default_rng(0)
    shipped = 0
    for _ in range(300):
        lost = rng.random(1000) < 0.04
        won = ~lost & (rng.random(1000) < 0.02 / 0.96)
        before = np.where(won, 0.0, 1.0)
        after = np.where(lost, 0.0, 1.0)
        shipped += ships(before, after)
    assert shipped <= 300 * 0.05


def ships(before, after):
    analyses = InterimAnalyses(rule_for(parse_limits(["top1 >= -2"]), None, {"top1"}), 1000)
    for n in range(100, 1001, 100):
        if (
            analyses.is_due(n)
            and analyses.judge(n, {"top1": (before[:n], after[:n])}) != INCONCLUSIVE
        ):
            break
    return analyses.verdict.is_good


def test_the_bounds_of_interim_analyses_are_those_of_the_joint_normal_distribution():
    parts = (0.2, 0.4, 0.6, 0.8, 1.0)
    bounds = stats.norm.isf((1 - np.array(sequential_levels(0.05, parts))) / 2)
    assert (np.diff(bounds) < 0).all()
    covariance = np.sqrt(np.minimum.outer(parts, parts) / np.maximum.outer(parts, parts))
    joint = stats.multivariate_normal(cov=covariance, seed=0)
    assert 1 - joint.cdf(bounds) == pytest.approx(0.025, abs=2e-4)
    assert sequential_levels(0.05, (1.0,)) == (pytest.approx(0.95),)


def test_a_slice_that_comes_late_is_tested_before_it_ships():
    slices = {"late": np.arange(1000) >= 900}
    rule = rule_for(parse_limits(["top1 >= -5", "top1@slices >= -5"]), None, {"top1"})
    analyses = InterimAnalyses(rule, 1000, slices=slices)
    right = np.ones(1000)
    for n in range(200, 1001, 200):
        assert analyses.judge(n, {"top1": (right[:n], right[:n])}) == (
            SHIP if n == 1000 else INCONCLUSIVE
        )


def test_speed_is_measured_where_the_rule_judges_it(place):
    result = compared(place, "good", "top1 >= -2", "speedup >= 0.2")
    assert result.verdict.answers[-1].name == "speed-up"
    latency = result.to_document()["measured"]["latency"]
    assert latency["baseline"]["p50_ms"] <= latency["baseline"]["p99_ms"]
    assert latency["blocks"] >= 40


def test_the_command_writes_the_test_and_ends_with_1_if_it_must_not_ship(place, tmp_path, capsys):
    models = [str(place / f"{name}.onnx") for name in ("good", "bad")]
    out = tmp_path / "ab.json"
    arguments = ["ab", *models, "--data", str(place / "data.npz"), "-o", str(out)]
    assert run_command([*arguments, "--slices", str(place / "slices.csv")]) == 1
    captured = capsys.readouterr()
    assert "DO NOT SHIP" in captured.out + captured.err
    assert "tier=low" in captured.out
    assert json.loads(out.read_text())["measured"]["verdict"]["word"] == DO_NOT
    arguments[2] = models[0]
    assert run_command([*arguments, "--limit", "top1 >= -2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "ab"


def test_a_build_can_be_the_reference(place, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    succeed(capsys, "build", place / "good.onnx", "--target", "cpu", "-o", "build")
    models = [place / f"{name}.onnx" for name in ("bad", "near")]
    options = ("--reference", "build", "--limit", "agreement >= 99")
    test = answer(capsys, "ab", *models, "--data", place / "data.npz", *options)
    answers = {row["name"]: row for row in test["measured"]["verdict"]["answers"]}
    assert answers["agreement"]["baseline"] < 90 < answers["agreement"]["candidate"]


@pytest.mark.parametrize(
    ("content", "names"),
    [
        ("tier\nlow\n", ["1 rows", "400 samples"]),
        ("file\n" + "a\n" * 400, ["slices.csv"]),
        ("tier\n" + "low\n" * 399 + "low,high\n", ["line 401"]),
        ("tier,source\n" + "low\n" * 400, ["line 2"]),
    ],
)
def test_slices_that_misfit_are_refused(tmp_path, content, names):
    (tmp_path / "slices.csv").write_text(content)
    with fails(InputError, *names):
        read_slices(tmp_path / "slices.csv", SAMPLES)


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("x = 1\n", ["metric"]),
        ("def metric(outputs, labels):\n    return 3\n", ["int"]),
        ("def metric(outputs, labels):\n    return {'a': float('nan')}\n", ["a", "nan"]),
        ("def metric(outputs, labels):\n    return {'a': 'x'}\n", ["a", "x"]),
        ("def metric(outputs, labels):\n    return {str(labels[0]): 1}\n", ["own.py"]),
        ("def metric(outputs, labels):\n    return 1 / 0\n", ["line 2"]),
        ("import nothing_at_all\n", ["nothing_at_all"]),
    ],
)
def test_metrics_that_fail_are_named(place, tmp_path, code, names):
    path = tmp_path / "own.py"
    path.write_text(code)
    with fails(InputError, *names):
        compared(place, "near", own=load_metric(path))
