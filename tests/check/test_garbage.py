"""Data that do not work: no command ships on them, and each says why."""

import numpy as np
import pytest

from tests.fixtures import trained
from tests.fixtures.kinds import KINDS
from trtcal import calibrate, load_model, quantize
from trtcal.check.data_check import check_data
from trtcal.check.evaluation_data import EvaluationCheck
from trtcal.config import parse_config
from trtcal.data import open_dataset
from trtcal.errors import TrtcalError
from trtcal.evaluate.ab import ABOptions, Question, ab_test
from trtcal.evaluate.accuracy import AccuracyMeter
from trtcal.evaluate.boxes import Boxes
from trtcal.evaluate.collectors import CollectSettings, Contrast
from trtcal.evaluate.comparison import CompareSettings, compare
from trtcal.evaluate.outputs import Output
from trtcal.evaluate.replay import Batch
from trtcal.evaluate.tasks import Task
from trtcal.evaluate.variant_limits import judge_variants
from trtcal.evaluate.variants import open_variant
from trtcal.limits import HOLDS, SHIP, WITH_CARE, overall, parse_limits
from trtcal.quantization import write_quantized
from trtcal.reporting.verdict import judge

NETWORKS = {
    "classifier": (trained.pictures, "top1 >= -1.0"),
    "regressor": (trained.rows, "mae <= +15%"),
    "tagger": (trained.tags, "jaccard >= -3.0"),
    "segmenter": (trained.scenes, "miou >= -3.0"),
}
"""Network -> what makes its data, and a limit that INT8 holds on them."""
CALIBRATION, TEST = 200, 400
MEAN, STD = (np.reshape(v, (3, 1, 1)) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))


UNRELATED = "no_better_than_constant|labels_disagree"
"""Issues of labels that are not those of the samples."""


def pixels(x):
    """The pixels, 0 to 255, of normalized images."""
    return 255 * (x * STD + MEAN)


def of_labels(change):
    return lambda c, x, y, rng: (c, x, change(y, rng))


def of_inputs(change):
    return lambda c, x, y, rng: (c, np.asarray(change(x, rng), np.float32), y)


def of_both(change):
    """The same for the data to calibrate on: nothing differs between them."""
    return lambda c, x, y, rng: (*(np.asarray(change(v, rng), np.float32) for v in (c, x)), y)


def spoiled(values, value):
    values = np.array(values, np.float64)
    values[3] = value
    return values


def noise(x, rng):
    return rng.standard_normal(x.shape)


IN_LABELS = {
    "shifted by one": (lambda y, rng: (y + 1) % 10, "labels_off_by_one"),
    "counted from one": (lambda y, rng: np.minimum(y + 1, 9), "labels_off_by_one"),
    "permuted": (lambda y, rng: rng.permutation(y), UNRELATED),
    "renumbered": (lambda y, rng: (3 * y + 1) % 10, UNRELATED),
    "random": (lambda y, rng: rng.integers(0, 10, len(y)), UNRELATED),
    "constant": (lambda y, rng: np.zeros_like(y), UNRELATED),
    "NaN": (lambda y, rng: spoiled(y, np.nan), "NaN"),
    "out of range": (lambda y, rng: y + 7, "not one of the 10 classes"),
    "negative": (lambda y, rng: y - 1, "not one of the 10 classes"),
    "one-hot": (lambda y, rng: np.eye(10)[y], "class scores|top1"),
    "one-hot of another order": (lambda y, rng: np.eye(10)[y].argmin(1), UNRELATED),
    "of the samples before": (lambda y, rng: np.roll(y, 1), UNRELATED),
    "reversed": (lambda y, rng: y[::-1].copy(), UNRELATED),
}  # fmt: skip
IN_INPUTS = {
    "noise": (of_both(noise), "no_better_than_constant|noise"),
    "noise to test": (of_inputs(noise), "no_better_than_constant|noise"),
    "zeros": (of_inputs(lambda x, rng: 0 * x), "zero_samples"),
    "zeros everywhere": (of_both(lambda x, rng: 0 * x), "zero_samples"),
    "one color": (of_inputs(lambda x, rng: 0 * x + rng.random((len(x), 3, 1, 1))), "constant"),
    "pixels": (of_inputs(lambda x, rng: pixels(x)), "prepared_otherwise"),
    "pixels everywhere": (of_both(lambda x, rng: pixels(x)), "not_normalized|pixels"),
    "times 255": (of_inputs(lambda x, rng: 255 * x), "prepared_otherwise"),
    "over 255": (of_inputs(lambda x, rng: x / 255), "prepared_otherwise"),
    "over 255 everywhere": (of_both(lambda x, rng: x / 255), "scaled|no_better"),
    "calibration over 255": (lambda c, x, y, rng: (c / 255, x, y), "prepared_otherwise"),
    "calibration of pixels": (
        lambda c, x, y, rng: (pixels(c).astype(np.float32), x, y), "prepared_otherwise",
    ),
    "BGR everywhere": (of_both(lambda x, rng: x[:, ::-1]), "channel_order"),
    "NHWC read as NCHW": (
        of_both(lambda x, rng: np.moveaxis(x, 1, -1).reshape(x.shape)), "layout",
    ),
    "shuffled pixels": (
        of_both(lambda x, rng: x.reshape(len(x), -1)[:, np.random.default_rng(3).permutation(768)]
                .reshape(x.shape)), "no_better|noise",
    ),
    "transposed": (of_inputs(lambda x, rng: x.swapaxes(2, 3)), "transposed"),
    "mirrored": (of_inputs(lambda x, rng: x[..., ::-1]), "mirrored"),
    "upside down": (of_inputs(lambda x, rng: x[:, :, ::-1]), "upside down"),
    "inverted": (of_inputs(lambda x, rng: x.max() + x.min() - x), "inverted"),
    "one sample": (of_inputs(lambda x, rng: np.repeat(x[:1], len(x), 0)), "no_better|distinct"),
    "thirty samples, twenty times each": (
        lambda c, x, y, rng: (c, np.tile(x[:30], (20, 1, 1, 1)), np.tile(y[:30], 20)), "distinct",
    ),
    "NaN": (of_inputs(lambda x, rng: spoiled(x, np.nan)), "NaN"),
    "infinite": (of_inputs(lambda x, rng: spoiled(x, np.inf)), "infinite"),
    "one class": (lambda c, x, y, rng: (c, x[y == 3], y[y == 3]), "all labels are the same"),
    "sorted, the first few": (
        lambda c, x, y, rng: (c, x[np.argsort(y)][:24], np.sort(y)[:24]), UNRELATED,
    ),
    "a dozen": (lambda c, x, y, rng: (c, x[:12], y[:12]), "samples"),
}  # fmt: skip
CASES = {
    **{f"labels {name}": ("classifier", of_labels(change), why)
       for name, (change, why) in IN_LABELS.items()},
    **{f"inputs {name}": ("classifier", *row) for name, row in IN_INPUTS.items()},
    "values constant": ("regressor", of_labels(lambda y, rng: 0 * y + 1.5), "no_better"),
    "values of another unit": ("regressor", of_labels(lambda y, rng: 1000 * y), "no_better"),
    "values permuted": ("regressor", of_labels(lambda y, rng: rng.permutation(y)), "no_better"),
    "values NaN": ("regressor", of_labels(lambda y, rng: spoiled(y, np.nan)), "NaN"),
    "tags permuted": ("tagger", of_labels(lambda y, rng: rng.permutation(y)), "no_better"),
    "tags of another order": ("tagger", of_labels(lambda y, rng: y[:, ::-1].copy()), "no_better"),
    "no tags": ("tagger", of_labels(lambda y, rng: 0 * y), "no_better"),
    "masks permuted": ("segmenter", of_labels(lambda y, rng: rng.permutation(y)), "no_better"),
    "masks of one class": ("segmenter", of_labels(lambda y, rng: 0 * y), "no_better"),
    "masks inverted": ("segmenter", of_labels(lambda y, rng: 1 - y), "no_better"),
}  # fmt: skip
"""What is wrong -> the network, how its data become wrong, and what of the reason is looked for."""


@pytest.fixture(scope="module")
def networks(tmp_path_factory):
    """Each network and INT8 of it, opened, with its data to calibrate on and to test."""
    folder, made = tmp_path_factory.mktemp("trained"), {}
    for name, (data, _) in NETWORKS.items():
        model = load_model(getattr(trained, name)(folder / f"{name}.onnx"))
        sets = [data(np.random.default_rng(seed), n) for seed, n in ((6, CALIBRATION), (5, TEST))]
        int8 = quantize(model, calibrate(model, {model.inputs[0].name: sets[0][0]}))
        write_quantized(folder / f"{name}-int8.onnx", int8)
        variants = [open_variant(folder / f"{name}{end}.onnx") for end in ("", "-int8")]
        made[name] = model, variants, sets[0][0], *sets[1]
    return made


def compared(model, variants, dataset, limits, calibration=None):
    collected = CollectSettings(
        simulate=False, checker=EvaluationCheck(model, dataset, calibration)
    )
    settings = CompareSettings(rounds=2, wanted=collected)
    return compare(variants[0], variants[1:], dataset, limits, settings)


def said_by_run(model, variants, dataset, limits, calibration):
    """What a run judges by: both data checks and the comparison."""
    comparison = compared(model, variants, dataset, limits, calibration)
    verdict = judge(comparison, issues=check_data(model, calibration).issues)
    reasons = [*verdict.reasons, *map(str, comparison.issues)]
    return verdict.word in (SHIP, WITH_CARE), " ".join([verdict.sentence, *reasons])


def said_by_compare(model, variants, dataset, limits, calibration):
    comparison = compared(model, variants, dataset, limits)
    (judged,) = judge_variants(comparison).values()
    reasons = [*(judgement.predicate for judgement in judged), *map(str, comparison.issues)]
    return overall(judged) == HOLDS, " ".join(reasons)


def said_by_ab(model, variants, dataset, limits, calibration):
    options = ABOptions(checker=EvaluationCheck(model, dataset))
    verdict = ab_test(*variants, dataset, Question(limits), options).verdict
    return verdict.is_good, " ".join([verdict.sentence, *verdict.warnings])


COMMANDS = {"run": said_by_run, "compare": said_by_compare, "ab": said_by_ab}


def said(command, networks, name, change):
    """Whether a command lets INT8 ship on data that were changed, and what it says."""
    model, variants, calibration, x, labels = networks[name]
    calibration, x, labels = change(calibration, x, labels, np.random.default_rng(9))
    limits, feed = parse_limits([NETWORKS[name][1]]), model.inputs[0].name
    try:
        dataset = open_dataset({feed: np.asarray(x, np.float32), "labels": labels}, model)
        other = open_dataset({feed: calibration}, model)
        return COMMANDS[command](model, variants, dataset, limits, other)
    except TrtcalError as error:
        return False, error.message


def failures(networks, cases):
    """Every case in which a command ships, or does not say why it does not."""
    for case, (name, change, why) in cases.items():
        for command in COMMANDS:
            if command != "run" and "prepared_otherwise" in why:
                continue  # they do not see the calibration data
            ships, text = said(command, networks, name, change)
            if ships or not any(part in text for part in why.split("|")):
                yield f"{case}, {command}: {'ships' if ships else text[:400]}"


QUICK = (
    "labels shifted by one",
    "labels permuted",
    "inputs thirty samples, twenty times each",
    "inputs transposed",
    "inputs inverted",
    "inputs mirrored",
)


def test_no_command_ships_on_data_that_do_not_work(networks):
    assert not [*failures(networks, {case: CASES[case] for case in QUICK})]


@pytest.mark.slow
def test_no_command_ships_on_any_of_these_data(networks):
    assert len(CASES) >= 30
    assert not [*failures(networks, CASES)]


def test_a_corrected_fault_is_not_taken_for_another(digits):
    model, data = load_model(digits / "digits.onnx"), dict(np.load(digits / "test.npz"))
    data["image"] *= 255
    dataset, variant = open_dataset(data, model), open_variant(digits / "digits.onnx")
    settings = CollectSettings(simulate=False, checker=EvaluationCheck(model, dataset))
    issues = compare(variant, [], dataset, (), CompareSettings(rounds=2, wanted=settings)).issues
    kinds = [issue.kind for issue in issues]
    assert "pixels_not_scaled" in kinds
    assert "channel_order" not in kinds


def test_every_command_ships_on_good_data(networks):
    wrong = [
        (name, command, text)
        for name in NETWORKS
        for command in COMMANDS
        for ships, text in [said(command, networks, name, lambda c, x, y, rng: (c, x, y))]
        if not ships or "look wrong" in text
    ]
    assert not wrong


def alarms(kind, folder):
    """The issues of good data of a kind of network, as they are made for its tests."""
    model = load_model(kind.save(folder / "net.onnx"))
    rng, settings = np.random.default_rng(0), parse_config(kind.config, folder / "trtcal.toml").data
    data, other = (open_dataset(kind.make(rng, 48), model, settings=settings) for _ in range(2))
    return EvaluationCheck(model, data, other).issues()


def test_good_data_of_all_kinds_of_networks_raise_no_alarm(tmp_path):
    found = {}
    for number, (name, kind) in enumerate(KINDS.items()):
        (tmp_path / str(number)).mkdir()
        found[name] = alarms(kind, tmp_path / str(number))
    assert not {name: issues for name, issues in found.items() if issues}


@pytest.mark.parametrize("share", [0.01, 0.005])
def test_a_model_that_finds_nothing_does_not_ship_where_there_is_nearly_nothing(tmp_path, share):
    x, _ = trained.scenes(np.random.default_rng(5), 200, share)
    paths = [
        trained.segmenter(tmp_path / f"{name}.onnx", threshold)
        for name, threshold in (("some", float(np.quantile(x, 1 - share))), ("nothing", 2.0))
    ]
    model, variants = load_model(paths[0]), [open_variant(path) for path in paths]
    for command in ("compare", "ab"):
        dataset = open_dataset({"x": x}, model)
        ships, text = COMMANDS[command](model, variants, dataset, (), None)
        assert not ships, text


def test_agreement_of_a_detector_shows_nothing_where_nearly_no_sample_has_a_box():
    contrast = Contrast(AccuracyMeter(Task("detection", (Output("boxes", "boxes"),))))
    one, none = (Boxes(np.ones((n, 4)), np.ones(n), np.zeros(n)) for n in (1, 0))
    contrast.add([[one] * 4])
    for _ in range(99):
        contrast.add([[none] * 4])
    assert contrast.result()["agreement"] >= 0.99


def test_data_of_which_some_are_yet_to_be_replayed_show_no_fault(networks):
    model, (reference, _), *_ = networks["classifier"]
    x, labels = NETWORKS["classifier"][0](np.random.default_rng(5), 1000)
    dataset, seen = open_dataset({"x": x, "labels": labels}, model), np.arange(200)
    check = EvaluationCheck(model, dataset)
    expected = reference.runner(["y"])({"x": x[seen]})
    check.see(Batch(seen, len(seen), labels[seen], expected))
    assert check.issues() == ()
