"""Data that are in memory: arrays, iterables of feeds, and what a PyTorch DataLoader gives."""

import os
import pickle

import numpy as np
import pytest

from tests.data.pictures import everything, model_of
from tests.fixtures.fails import fails
from tests.fixtures.stored import CHANGED
from tests.fixtures.tables import each
from trtcal.data import open_dataset
from trtcal.errors import InputError

ROWS = np.random.default_rng(3).standard_normal((7, 3, 8, 8)).astype(np.float32)
LABELS = np.arange(7)
PARTS = [slice(0, 3), slice(3, 6), slice(6, 7)]


class Tensor:
    """What a PyTorch tensor has of what is read here; `numpy` fails until it is detached."""

    def __init__(self, array, detached=False):
        self.array, self.detached = array, detached

    def detach(self):
        return Tensor(self.array, True)

    def cpu(self):
        return self

    def numpy(self):
        if not self.detached:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad.")
        return self.array


class Framed:
    """An array of a library that only speaks numpy's protocol."""

    def __init__(self, array):
        self.array = array

    def __array__(self, dtype=None, copy=None):
        return self.array


class Loader:
    """Gives what a DataLoader over a TensorDataset of samples and labels gives."""

    def __iter__(self):
        for part in PARTS:
            yield [Tensor(ROWS[part]), Tensor(LABELS[part])]

    def __len__(self):
        return len(PARTS)


def generated():
    for part in PARTS:
        yield {"x": ROWS[part], "labels": LABELS[part]}


@pytest.fixture
def model(tmp_path):
    return model_of(tmp_path / "net.onnx")


@pytest.fixture
def stored(tmp_path, model):
    np.savez(tmp_path / "data.npz", x=ROWS, labels=LABELS)
    return open_dataset(tmp_path / "data.npz", model)


@pytest.mark.parametrize(
    "data",
    [
        {"x": ROWS, "labels": LABELS},
        {"x": Tensor(ROWS), "labels": Framed(LABELS)},
        Loader(),
        list(generated()),
        tuple((ROWS[part], LABELS[part]) for part in PARTS),
        generated,
    ],
    ids=["arrays", "tensors", "loader", "list", "tuples", "function"],
)
def test_the_same_data_in_memory_have_the_fingerprint_of_the_file(model, stored, data):
    found = open_dataset(data, model)
    assert found.fingerprint == stored.fingerprint
    assert found.labels.tolist() == LABELS.tolist()
    for size in (1, 4, 100):
        assert (everything(found, size) == ROWS).all()


@pytest.mark.parametrize("data", [ROWS, Tensor(ROWS), Framed(ROWS), [ROWS[:4], ROWS[4:]]])
def test_one_input_takes_arrays_without_a_name(model, data):
    found = open_dataset(data, model)
    assert found.labels is None
    assert (everything(found) == ROWS).all()


def test_a_path_may_be_text(tmp_path, model, stored):
    for path in (str(tmp_path / "data.npz"), tmp_path / "data.npz"):
        assert open_dataset(path, model).fingerprint == stored.fingerprint
        assert isinstance(path, (str, os.PathLike))


def test_a_dataset_stays_itself_unless_the_model_has_other_inputs(tmp_path, model, stored):
    assert open_dataset(stored, model) is stored
    other = model_of(tmp_path / "other.onnx", inputs=("x", "y"))
    with fails(InputError, "x, y"):
        open_dataset(stored, other)


def test_arrays_without_names_are_in_the_order_of_the_inputs(tmp_path):
    model = model_of(tmp_path / "two.onnx", inputs=("x", "y"))
    found = open_dataset([(ROWS, ROWS * 2, LABELS)], model)
    assert (everything(found, 3, "y") == ROWS * 2).all()
    assert found.labels.tolist() == LABELS.tolist()


@pytest.mark.parametrize("data", [{"x": ROWS}, list(generated()), Loader()])
def test_data_in_memory_go_to_other_processes(model, data):
    found = open_dataset(data, model)
    again = pickle.loads(pickle.dumps(found))  # noqa: S301  # its own
    assert again.fingerprint == found.fingerprint
    assert (everything(again) == ROWS).all()


@each(
    "data, says, hint",
    [
        (3, "type int cannot be read", "a PyTorch DataLoader"),
        (None, "NoneType", "give a path"),
        (generated(), "type generator can be read only once", "without calling it"),
        (iter([ROWS]), "can be read only once", "a list of feeds"),
        ([], "are empty", ""),
        (["x"], "feed 0: the feed is a str", "one dictionary"),
        ([[1.0, 2.0]], "feed 0: the feed is a list", "one dictionary"),
        ([(ROWS, LABELS, LABELS)], "3 arrays", "then the labels"),
        ({"x": [1.0]}, "'x' is a list, not an array", "numpy arrays"),
        ({"y": ROWS}, "no array for the model's input 'x'", ""),
        ([(ROWS, ROWS > 0)], "labels are bool", "integers"),
        (ROWS[0, 0], "samples first", ""),
        (lambda: 3, "type int cannot be read", "yields"),
    ],
)
def test_other_types_are_refused_with_what_is_taken(model, data, says, hint):
    with fails(InputError, says) as refused:
        open_dataset(data, model)
    assert hint in refused.value.hint


def test_a_loader_that_shuffles_is_refused_when_it_is_read_again(model):
    class Shuffled:
        def __iter__(self):
            yield {"x": np.random.default_rng().permutation(ROWS)}

    with fails(InputError, CHANGED) as refused:
        everything(open_dataset(Shuffled(), model))
    assert "do not shuffle" in refused.value.hint


def test_a_real_data_loader(model, stored):
    torch = pytest.importorskip("torch")
    pairs = torch.utils.data.TensorDataset(torch.from_numpy(ROWS), torch.from_numpy(LABELS))
    loader = torch.utils.data.DataLoader(pairs, batch_size=3)
    assert open_dataset(loader, model).fingerprint == stored.fingerprint
