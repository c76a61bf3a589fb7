import numpy as np
import pytest
from onnx import helper

from tests.data.pictures import everything
from tests.fixtures.fails import fails
from tests.fixtures.networks import conv_net, samples, save
from tests.fixtures.tables import each
from trtcal.data import open_dataset
from trtcal.errors import InputError
from trtcal.model import load_model

IMAGES = np.zeros((4, 3, 8, 8), np.float32)
COLOURS = np.random.default_rng(0).integers(0, 256, (4, 3, 8, 8)).astype(np.float32)


@pytest.fixture
def model(tmp_path):
    return load_model(conv_net(tmp_path / "net.onnx"))


def test_batches_hold_every_sample_once_in_order(tmp_path, model):
    data = open_dataset(samples(tmp_path / "data.npz"), model)
    parts = [feeds["x"] for feeds in data.batches(7)]
    assert [len(part) for part in parts] == [7, 7, 7, 3]
    with np.load(tmp_path / "data.npz") as wanted:
        assert (np.concatenate(parts) == wanted["x"]).all()
    assert data.labels is not None


def test_the_same_data_in_another_file_have_the_same_fingerprint(tmp_path, model):
    first = open_dataset(samples(tmp_path / "data.npz"), model)
    folder = tmp_path / "folder"
    folder.mkdir()
    images = everything(first)
    np.save(folder / "x.npy", images)
    np.save(folder / "labels.npy", first.labels)
    second = open_dataset(folder, model)
    assert second.fingerprint == first.fingerprint
    np.save(folder / "x.npy", images + 1)
    assert open_dataset(folder, model).fingerprint != first.fingerprint


def test_arrays_that_are_not_inputs_are_named(tmp_path, model):
    np.savez(tmp_path / "data.npz", x=IMAGES, ids=np.arange(4))
    assert open_dataset(tmp_path / "data.npz", model).unused == ("ids",)


def nan():
    images = IMAGES.copy()
    images[2, 0, 0, 0] = np.nan
    return images


@each(
    "arrays, says",
    [
        ({"image": IMAGES}, "image"),
        ({"x": IMAGES.astype(np.float64)}, "float64"),
        ({"x": IMAGES[:, :2]}, "[4, 2, 8, 8]"),
        ({"x": IMAGES[0, 0]}, "[8, 8]"),
        ({"x": IMAGES[:0]}, "empty"),
        ({"x": nan()}, "sample 2"),
        ({"x": IMAGES, "labels": np.zeros(3, np.int64)}, "labels"),
        ({"x": IMAGES, "labels": np.array(["a", "b", "c", "d"])}, "labels"),
        ({"x": np.array([object()])}, "cannot be read"),
    ],
)
def test_data_that_do_not_fit_are_refused(tmp_path, model, arrays, says):
    np.savez(tmp_path / "data.npz", **arrays)
    with fails(InputError, says):
        open_dataset(tmp_path / "data.npz", model)


def test_missing_and_corrupt_files_are_refused(tmp_path, model):
    with fails(InputError, "none.npz"):
        open_dataset(tmp_path / "none.npz", model)
    (tmp_path / "bad.npz").write_bytes(b"PK\x03\x04 nothing")
    with fails(InputError, "bad.npz"):
        open_dataset(tmp_path / "bad.npz", model)
    (tmp_path / "empty").mkdir()
    with fails(InputError, ".npy", ".npz"):
        open_dataset(tmp_path / "empty", model)


def test_a_single_array_is_the_one_input(tmp_path, model):
    np.save(tmp_path / "one.npy", COLOURS)
    np.savez(tmp_path / "one.npz", x=COLOURS)
    dataset = open_dataset(tmp_path / "one.npy", model)
    assert dataset.fingerprint == open_dataset(tmp_path / "one.npz", model).fingerprint


def test_a_single_array_is_refused_for_two_inputs(tmp_path):
    nodes = [helper.make_node("Add", ["a", "b"], ["y"])]
    shapes = {"a": ["n", 3], "b": ["n", 3]}
    path = save(tmp_path / "two.onnx", nodes, {}, shapes, {"y": ["n", 3]})
    np.save(tmp_path / "one.npy", np.zeros((4, 3), np.float32))
    with fails(InputError, "2 inputs"):
        open_dataset(tmp_path / "one.npy", load_model(path))


@pytest.mark.parametrize(
    ("file", "arrays"),
    [
        ("last.npy", np.moveaxis(COLOURS, 1, -1)),
        ("bytes.npy", np.moveaxis(COLOURS, 1, -1).astype(np.uint8)),
        ("doubles.npz", {"x": COLOURS.astype(np.float64)}),
        ("named.npz", {"images": np.moveaxis(COLOURS, 1, -1), "labels": np.arange(len(COLOURS))}),
    ],
)
def test_the_line_that_a_hint_gives_makes_data_that_fit(tmp_path, monkeypatch, model, file, arrays):
    monkeypatch.chdir(tmp_path)
    np.savez(file, **arrays) if isinstance(arrays, dict) else np.save(file, arrays)
    with pytest.raises(InputError) as error:
        open_dataset(file, model)
    line = error.value.hint.rpartition("in Python: ")[2]
    exec(line, {"np": np})  # noqa: S102
    made = open_dataset("data.npz", model)
    assert len(made) == len(COLOURS)
    assert np.array_equal(next(made.batches(len(COLOURS)))["x"], COLOURS)
    if isinstance(arrays, dict) and "labels" in arrays:
        assert list(made.labels) == list(range(len(COLOURS)))
