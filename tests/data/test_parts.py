"""Data read in parts, by several processes: the rows, the fingerprint and the doubts stay the same."""

import os
import pickle
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.data.pictures import PLAIN, draw, everything, model_of
from tests.fixtures.fails import fails
from tests.fixtures.stored import CHANGED, COUNT, KINDS, stored
from tests.fixtures.stored import part as part_of
from tests.fixtures.tables import each
from trtcal.data import open_dataset
from trtcal.data.dataset import Fingerprint, digests_of
from trtcal.data.subsets import counted
from trtcal.errors import InputError

SETTLED = ("npz", "compressed", "npy")


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def scene(tmp_path, kind):
    images, path = stored(tmp_path, kind)
    return images, open_dataset(path, model_of(tmp_path / "net.onnx"), PLAIN)


def part(dataset, size, start, stop):
    """Read samples and return them with all that the dataset has witnessed."""
    return [feeds["x"] for feeds in dataset.batches(size, start, stop)], dataset.witnessed()


@pytest.fixture(scope="module")
def elsewhere():
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        yield pool


def test_any_part_in_any_batches_holds_its_samples(scene):
    images, data = scene
    for start, stop in (
        *((0, 4), (4, 5), (6, 11), (2, 9), (0, None), (8, 99), (5, 5), (7, 3), (11, 12)),
    ):
        for size in (1, 3, 100):
            batches = part(data, size, start, stop)[0]
            assert all(len(batch) == size for batch in batches[:-1])
            np.testing.assert_array_equal(
                np.concatenate([images[:0], *batches]), images[start:stop]
            )


def test_another_process_reads_what_was_pickled(scene, elsewhere):
    images, data = scene
    next(data.batches(2, 3))  # streams are open now
    halves = [elsewhere.submit(part, data, 3, *span) for span in ((5, None), (0, 5))]
    (last, seen), (first, _) = (half.result() for half in halves)
    np.testing.assert_array_equal(np.concatenate([*first, *last]), images)
    assert data.name == pickle.loads(pickle.dumps(data)).name  # noqa: S301
    data.learn(seen)
    assert data.fingerprint


def test_the_fingerprint_of_parts_is_that_of_the_whole(scene, kind, elsewhere, tmp_path):
    data = scene[1]
    expected = open_dataset(tmp_path / "images.npz", model_of(tmp_path / "net.onnx")).fingerprint
    for start, stop in ((9, 11), (0, 4), (3, 8)):
        data.learn(elsewhere.submit(part, data, 2, start, stop).result()[1])
    if kind == "images":  # the samples that were learned are not read once more
        assert data.witnessed().any(axis=1).tolist() == [number != 8 for number in range(COUNT)]
        (data.path / data.files[0]).unlink()
    assert data.fingerprint == expected
    assert len(data.witnessed()) == (0 if kind in SETTLED else COUNT)


def test_the_identity_is_there_before_a_pass(scene, kind):
    data = scene[1]
    seen = data.witnessed()
    identity = data.identity
    assert (data.witnessed() == seen).all()
    assert (identity == data.fingerprint) == (kind != "images")
    assert identity == pickle.loads(pickle.dumps(data)).identity  # noqa: S301


@pytest.mark.parametrize("kind", ["images"])
def test_the_identity_of_images_is_of_files_declaration_and_labels(scene, tmp_path):
    model, folder = model_of(tmp_path / "net.onnx"), tmp_path / "pictures"
    before = scene[1].identity
    assert open_dataset(folder, model, PLAIN).identity == before
    gray = PLAIN.__class__(**{**vars(PLAIN), "scale": 2.0})
    others = [open_dataset(folder, model, gray).identity]
    (folder / "labels.csv").write_text(
        "file,label\n" + "".join(f"{n:03}.png,0\n" for n in range(COUNT))
    )
    others.append(open_dataset(folder, model, PLAIN, "csv").identity)
    os.utime(folder / "003.png", ns=(0, 0))
    others.append(open_dataset(folder, model, PLAIN).identity)
    assert len({before, *others}) == 4


@pytest.mark.parametrize("kind", ["images"])
def test_what_contradicts_is_refused_and_changes_nothing(scene, tmp_path):
    data = scene[1]
    part(data, 4, 0, 6)
    before = data.witnessed()
    twin = pickle.loads(pickle.dumps(data))  # noqa: S301
    draw(tmp_path / "pictures" / "005.png", 99)
    with fails(InputError, CHANGED):
        part(twin, 3, 3, 6)
    other = open_dataset(tmp_path / "pictures", model_of(tmp_path / "net.onnx"), PLAIN)
    for witnessed in (part(other, 3, 3, 9)[1], np.ones((COUNT + 1, 32), np.uint8)):
        with fails(InputError, CHANGED):
            data.learn(witnessed)
        assert (data.witnessed() == before).all()


@pytest.mark.parametrize("kind", SETTLED)
def test_arrays_that_are_changed_between_two_passes_are_noticed(scene, kind, tmp_path):
    images, data = scene
    everything(data)
    path = tmp_path / {"npy": "npy/x.npy", "npz": "images.npz"}.get(kind, "compressed.npz")
    {"npy": np.save, "npz": np.savez}.get(kind, np.savez_compressed)(path, images + 1)
    os.utime(path, ns=(0, 0))  # clocks of files are coarse
    with fails(InputError, CHANGED):
        everything(data)


@pytest.mark.parametrize("kind", ["script"])
def test_rising_parts_run_a_script_once_and_a_step_back_runs_it_anew(scene, tmp_path):
    data = scene[1]
    log = tmp_path / "loader.log"
    log.write_text("")
    for start, stop in ((0, 2), (2, 7), (8, 9)):
        part(data, 2, start, stop)
    next(data.batches(1, 9, 10))  # left at its only batch
    part(data, 2, 10, 11)
    assert log.read_text() == "run "
    part(data, 2, 10, 11)  # the run before came to its end
    part(data, 2, 4, 5)
    part(data, 2, 3, 5)
    assert log.read_text() == "run " * 4


@pytest.mark.parametrize("kind", ["script"])
def test_passes_at_the_same_time_do_not_disturb_each_other(scene):
    images, data = scene
    pairs = [
        (one["x"], two["x"]) for one, two in zip(data.batches(2), data.batches(2), strict=True)
    ]
    for side in zip(*pairs, strict=True):
        np.testing.assert_array_equal(np.concatenate(side), images)


@pytest.mark.parametrize("count", [10, 12])
@pytest.mark.parametrize("kind", ["script"])
def test_a_script_that_yields_fewer_or_more_samples_is_noticed(scene, tmp_path, count):
    images, data = scene
    np.savez(tmp_path / "images.npz", x=np.concatenate([images, images])[:count])
    part(data, 3, 0, 8)
    with fails(InputError, CHANGED):
        part(data, 3, 8, 11)


ARRAYS = {"x": np.random.default_rng(1).standard_normal((9, 3)), "y": np.arange(9, dtype=np.int8)}


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=6), st.booleans())
def test_digests_add_up_in_any_order_and_tell_what_is_missing(spans, labelled):
    labels = np.arange(9) if labelled else None
    whole, parts = Fingerprint(9), Fingerprint(9)
    assert whole.add(0, digests_of(ARRAYS))
    for start, stop in spans:
        cut = {name: array[start:stop] for name, array in reversed(ARRAYS.items())}
        assert parts.add(start, digests_of(cut)) if start < stop else True
    missing = set(range(9)).difference(*(range(*span) for span in spans))
    assert [n for gap in parts.gaps() for n in range(*gap)] == sorted(missing)
    assert (parts.digest(labels) == whole.digest(labels)) == (not missing)
    for start, stop in parts.gaps():
        assert parts.add(start, whole.digests[start:stop])
    assert parts.digest(labels) == whole.digest(labels)


@given(st.permutations(range(9)))
def test_the_order_of_the_samples_counts(order):
    turned = digests_of({name: array[list(order)] for name, array in ARRAYS.items()})
    assert (turned == digests_of(ARRAYS)[list(order)]).all()
    first, second = Fingerprint(9), Fingerprint(9)
    first.add(0, turned)
    second.add(0, digests_of(ARRAYS))
    assert (first.digest(None) == second.digest(None)) == (list(order) == list(range(9)))


@each(
    "other",
    [
        {"z": ARRAYS["x"], "y": ARRAYS["y"]},
        {"x": ARRAYS["x"].reshape(9, 3, 1), "y": ARRAYS["y"]},
        {"x": ARRAYS["x"].view(np.int64), "y": ARRAYS["y"]},
        {"x": ARRAYS["x"]},
    ],
)
def test_names_types_and_shapes_count(other):
    assert not (digests_of(other) == digests_of(ARRAYS)).all(axis=1).any()


def test_batches_are_of_the_size_that_the_model_prescribes(tmp_path, kind):
    _, path = stored(tmp_path, kind)
    for batch in (1, COUNT):
        whole = open_dataset(path, model_of(tmp_path / "net.onnx", (batch, 3, 8, 8)), PLAIN)
        for dataset in (whole, counted(whole), part_of(whole, 0, COUNT)):
            assert [len(feeds["x"]) for feeds in dataset.batches(4)] == [batch] * (COUNT // batch)
