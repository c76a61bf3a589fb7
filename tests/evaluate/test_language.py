"""Language models: next tokens as labels, perplexity, caches that begin empty and grow."""

import numpy as np
import onnxruntime
import pytest

from tests.fixtures.language_models import Size, prompt, texts, write_language_model
from trtcal.backends.sessions import open_session, run_session
from trtcal.calibration import calibrate, observe
from trtcal.config import DataConfig
from trtcal.data import open_dataset
from trtcal.data.dataset import PADDING
from trtcal.errors import InputError
from trtcal.evaluate.comparison import CompareSettings, compare
from trtcal.evaluate.overflow import tensor_peaks
from trtcal.evaluate.replay import OwnStates, carry
from trtcal.evaluate.variant_limits import judge_variants
from trtcal.evaluate.variants import open_variant
from trtcal.model import load_model
from trtcal.model.files import bytes_of
from trtcal.model.states import caches_of, tokens_of
from trtcal.quantization import find_layers, prepare, quantize, tensors_to_observe, write_quantized

SIZE = Size(layers=1, width=32, heads=4, keys=2, inner=48, words=40)
LENGTHS = (5, 9, 7, 9)


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    return write_language_model(tmp_path_factory.mktemp("language") / "net.onnx", SIZE)


@pytest.fixture(scope="module")
def written(network):
    return [*texts(network, LENGTHS, SIZE)]


def without_past(tokens):
    return {n: array for n, array in prompt(tokens, SIZE).items() if "past" not in n}


def opened(network, feeds, **settings):
    model, settings = load_model(network), DataConfig(**settings)
    return carry(model, open_dataset(feeds, model, settings=settings), settings)


def entropies(path, tokens):
    """Return the cross entropy of each next token, by hand."""
    (logits,) = run_session(open_session(path), ["logits"], prompt(tokens, SIZE))
    logits = logits[0].astype(np.float64)
    logs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    return -logs[np.arange(tokens.shape[1] - 1), tokens[0, 1:]]


@pytest.fixture(scope="module")
def int8(network, written):
    model = load_model(network)
    prepared, data = prepare(model), opened(network, [*map(without_past, written)])
    observation = observe(prepared, data, tensors_to_observe(find_layers(prepared)))
    path = network.with_name("int8.onnx")
    write_quantized(path, quantize(prepared, calibrate(observation, "minmax")))
    return path


def test_tokens_and_caches_are_known_by_form_and_name(network):
    model = load_model(network)
    assert tokens_of(model) == "input_ids"
    assert caches_of(model) == {
        f"present.0.{part}": f"past_key_values.0.{part}" for part in ("key", "value")
    }


def test_caches_that_the_data_lack_begin_empty(network, written):
    data = opened(network, [*map(without_past, written)])
    explicit = opened(network, [prompt(tokens, SIZE) for tokens in written])
    assert data.fingerprint == explicit.fingerprint
    feeds = next(data.batches(1))
    assert feeds["past_key_values.0.key"].shape == (1, SIZE.keys, 0, SIZE.head)


def test_labels_are_the_next_tokens(network, written):
    labels = opened(network, [*map(without_past, written)]).labels
    assert labels.shape == (len(LENGTHS), max(LENGTHS))
    for row, tokens in zip(labels, written, strict=True):
        assert row[: tokens.shape[1] - 1].tolist() == tokens[0, 1:].tolist()
        assert (row[tokens.shape[1] - 1 :] == PADDING).all()


def test_masked_tokens_are_no_labels(network, written):
    feed = without_past(written[1])
    feed["attention_mask"][0, -3:] = 0
    labels = opened(network, [feed]).labels
    assert (labels[0] == PADDING).tolist() == [False] * 5 + [True] * 4


def test_labels_of_the_data_stay(network, written):
    feeds = [{**without_past(tokens), "labels": tokens % 7} for tokens in written]
    labels = opened(network, feeds).labels
    assert labels[0].tolist() == [*(written[0][0] % 7), *[PADDING] * 4]


def test_perplexity_is_the_exponential_of_the_mean_cross_entropy(network, int8, written):
    data = opened(network, [*map(without_past, written)])
    reference, variant = open_variant(network), open_variant(int8)
    comparison = compare(reference, [variant], data, (), CompareSettings(rounds=3))
    assert comparison.task.name == "language"
    assert comparison.task.outputs == {"logits": "language"}
    for row, path in zip(comparison.rows, (network, int8), strict=True):
        mean = np.mean([entropies(path, tokens).mean() for tokens in written])
        assert row.means["perplexity"].value.mean == pytest.approx(np.exp(mean), rel=1e-3)
    (judgement,) = judge_variants(comparison)["int8"]
    assert str(judgement.limit) == "perplexity <= +1.0%"
    before, after = (row.means["perplexity"].value.mean for row in comparison.rows)
    assert judgement.figure.value == pytest.approx(100 * (after / before - 1), abs=0.02)


@pytest.mark.parametrize("steps", [1, 3])
def test_steps_have_the_caches_of_the_tokens_before(network, written, steps):
    data = opened(network, [*map(without_past, written)], steps=steps)
    assert len(data) == len(LENGTHS) * (1 + steps)
    session = onnxruntime.InferenceSession(network)
    whole = session.run(["logits"], prompt(written[0], SIZE))[0][0]
    batches = [*data.batches(1, 0, 1 + steps)]
    rows = [session.run(["logits"], dict(feeds))[0][0] for feeds in batches]
    np.testing.assert_allclose(np.concatenate(rows), whole[:-1], atol=1e-4)
    assert [feeds.starts for feeds in batches] == [[True], *[[False]] * steps]
    labels = [row[: len(part)] for row, part in zip(data.labels, rows, strict=False)]
    assert np.concatenate(labels).tolist() == written[0][0, 1:].tolist()


def test_a_variant_goes_on_with_its_own_caches(network, int8, written):
    session = onnxruntime.InferenceSession(int8)
    names = [each.name for each in session.get_outputs()]
    fed = []

    def run(feeds):
        fed.append(feeds["past_key_values.0.value"])
        return dict(zip(names, session.run(None, feeds), strict=True))

    variant, data = OwnStates(run), opened(network, [without_past(written[1])], steps=2)
    outputs = [variant(feeds)["present.0.value"] for feeds in data.batches(1)]
    assert [array.shape[2] for array in fed] == [0, 6, 7]
    np.testing.assert_array_equal(fed[1], outputs[0])
    np.testing.assert_array_equal(fed[2], outputs[1])


def test_steps_need_caches(tmp_path, written):
    path = write_language_model(tmp_path / "whole.onnx", SIZE, has_past=False)
    with pytest.raises(InputError, match="has no caches"):
        opened(path, [*map(without_past, written)], steps=2)


def test_growing_caches_are_no_states_of_a_fixed_size(network, written):
    states = {"present.0.key": "past_key_values.0.key"}
    with pytest.raises(InputError, match="grows with each step"):
        opened(network, [*map(without_past, written)], states=states)


def test_a_tensor_without_values_has_no_peak(network, written):
    model = load_model(network)
    peaks = tensor_peaks(model, opened(network, [*map(without_past, written)]))
    assert peaks["past_key_values.0.key"] == 0
    assert peaks["present.0.key"] > 0


def test_the_size_of_a_variant_has_its_weights_in_other_files(network, tmp_path):
    path = write_language_model(tmp_path / "external.onnx", SIZE, embedded=False)
    weights = path.with_suffix(".bin").stat().st_size
    model = load_model(path, 0)
    assert bytes_of(path, model.proto) == path.stat().st_size + weights
