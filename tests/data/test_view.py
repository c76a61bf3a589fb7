"""A part of a dataset is a dataset: the same samples, under a fingerprint of its own."""

import pickle

import numpy as np
import pytest

from tests.data.pictures import PLAIN, model_of
from tests.fixtures.fails import fails
from tests.fixtures.networks import conv_net, samples
from tests.fixtures.stored import CHANGED, COUNT, KINDS, part, stored
from trtcal.calibration import calibrate, observe
from trtcal.data import count_read, counted, held_back, open_dataset
from trtcal.errors import InputError
from trtcal.model import load_model


@pytest.fixture(params=KINDS)
def scene(tmp_path, request):
    images, path = stored(tmp_path, request.param)
    return images, lambda: open_dataset(path, model_of(tmp_path / "net.onnx"), PLAIN)


def read(dataset, size=3, start=0, stop=None):
    return np.concatenate([feeds["x"] for feeds in dataset.batches(size, start, stop)])


def test_it_has_the_samples_of_its_range_and_no_others(scene):
    images, opened = scene
    data = part(opened(), 3, 9)
    assert len(data) == 6
    assert data.inputs == ("x",)
    assert np.array_equal(read(data), images[3:9])
    assert np.array_equal(read(data, 2, 1, 4), images[4:7])
    assert np.array_equal(read(data, 4, 2, 99), images[5:9])
    assert [len(feeds["x"]) for feeds in data.batches(4)] == [4, 2]
    assert np.array_equal(read(part(data, 2, 5)), images[5:8])


def test_the_fingerprint_tells_parts_apart_and_is_the_same_each_time(scene):
    _, opened = scene
    whole = opened()
    parts = [part(whole, 0, 4), part(whole, 4, 8), part(whole, 0, COUNT)]
    assert len({one.fingerprint for one in [whole, *parts]}) == 4
    assert len({one.identity for one in [whole, *parts]}) == 4
    assert part(opened(), 4, 8).fingerprint == parts[1].fingerprint


def test_it_goes_to_another_process_and_what_was_read_there_comes_back(scene):
    images, opened = scene
    here = part(opened(), 3, 9)
    there = pickle.loads(pickle.dumps(here))  # noqa: S301
    assert np.array_equal(read(there), images[3:9])
    here.learn(there.witnessed())
    assert np.array_equal(here.witnessed(), there.witnessed())
    assert here.fingerprint == part(opened(), 3, 9).fingerprint


def test_another_sample_than_before_is_refused(tmp_path):
    _, path = stored(tmp_path, "images")
    data = part(open_dataset(path, model_of(tmp_path / "net.onnx"), PLAIN), 3, 9)
    read(data)
    with fails(InputError, CHANGED):
        data.learn(data.witnessed()[::-1])


def test_labels_are_cut_along(tmp_path):
    data = open_dataset(samples(tmp_path / "data.npz"), load_model(conv_net(tmp_path / "net.onnx")))
    assert part(data, 5, 8).labels.tolist() == [0, 1, 2]


def test_histograms_of_parts_add_up_to_those_of_the_whole(tmp_path):
    model = load_model(conv_net(tmp_path / "net.onnx"))
    data = open_dataset(samples(tmp_path / "data.npz"), model)
    tensors = ["x", "b", "e"]
    whole = observe(model, data, tensors)
    first, second = (observe(model, part(data, *span), tensors) for span in ((0, 8), (8, 24)))
    assert (first.samples, second.samples) == (8, 16)
    for name, histogram in first.histograms.items():
        histogram.merge(second.histograms[name])
        assert histogram.amax == whole.histograms[name].amax
    assert calibrate(first, "minmax").ranges == calibrate(whole, "minmax").ranges


def test_what_is_held_back_comes_from_all_over(scene):
    images, opened = scene
    most, held = held_back(opened(), 4)
    numbers = [int(np.flatnonzero((images == one).all(axis=(1, 2, 3)))[0]) for one in read(held)]
    assert len(most) + len(held) == len(images)
    assert len(held) == 4
    assert max(np.diff(numbers)) <= len(images) // 4 + 1
    everything = np.concatenate([read(most), read(held)])
    assert sorted(one.tobytes() for one in everything) == sorted(one.tobytes() for one in images)


def test_runs_are_read_in_whole_batches(scene):
    _, opened = scene
    most, held = held_back(opened(), 4)
    whole = read(most, len(most))
    assert [len(feeds["x"]) for feeds in most.batches(4)][:-1] == [4] * ((len(most) - 1) // 4)
    assert np.array_equal(read(most, 4), whole)
    assert np.array_equal(read(most, 3, 2, 7), whole[2:7])
    assert most.fingerprint != held.fingerprint


def test_runs_are_multiples_of_a_fixed_batch(tmp_path):
    model = load_model(conv_net(tmp_path / "net.onnx"))
    data = open_dataset(samples(tmp_path / "data.npz", count=40), model)
    most, held = held_back(data, 12, 4)
    assert (len(most), len(held)) == (28, 12)
    assert all(
        size % 4 == 0 for size in (stop - start for start, stop in (*most.spans, *held.spans))
    )


def test_reads_are_counted_by_purpose_over_processes_and_subsets(scene):
    images, opened = scene
    plain = opened()
    data = counted(plain)
    known = COUNT if not len(plain.witnessed()) else int(plain.witnessed().any(axis=1).sum())
    with data.reading_for("histograms"):
        assert np.array_equal(read(data), images)
        read(part(data, 3, 9))
    with data.reading_for("data check"):
        there = pickle.loads(pickle.dumps(part(data, 0, 4)))  # noqa: S301
        read(there)  # not counted here
        count_read(part(data, 0, 4), 4)
    assert (data.fingerprint, len(data)) == (opened().fingerprint, COUNT)
    reads = {one.purpose: one.samples for one in data.summary()}
    assert reads.pop("opening: check and fingerprint", 0) == known
    assert reads == {"histograms": COUNT + 6, "data check": 4}
    assert {one.purpose: one.passes for one in data.summary()}["histograms"] == 1.545
    count_read(plain, 4)  # nothing counts its reads


def test_what_a_fingerprint_reads_is_counted(tmp_path):
    _, path = stored(tmp_path, "images")
    data = counted(open_dataset(path, model_of(tmp_path / "net.onnx"), PLAIN))
    assert data.summary() == ()
    assert data.files == tuple(f"{number:03}.png" for number in range(COUNT))
    assert part(data, 2, 4).files == ("002.png", "003.png")
    assert data.fingerprint
    assert [(one.purpose, one.samples) for one in data.summary()] == [("fingerprint", COUNT)]


def test_labels_of_several_values_a_sample_are_shown_by_their_shape(tmp_path):
    data = {"x": np.zeros((4, 3, 8, 8), np.float32), "labels": np.zeros((4, 3), np.int64)}
    opened = open_dataset(data, load_model(conv_net(tmp_path / "net.onnx")))
    assert "labels of shape (3)" in repr(opened)


@pytest.mark.parametrize("count", [28, 31])
def test_nearly_all_samples_may_be_held_back(tmp_path, count):
    path = samples(tmp_path / "data.npz", count=32)
    data = open_dataset(path, load_model(conv_net(tmp_path / "net.onnx")))
    most, judged = held_back(data, count)
    assert (len(most), len(judged)) == (32 - count, count)
