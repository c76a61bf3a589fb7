"""Polygraphy's inputs and scripts: read unchanged, checked, and flat in memory."""

import base64
import io
import json
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto
from polygraphy.json import save_json

from tests.data.pictures import everything, model_of
from tests.fixtures.fails import fails
from tests.fixtures.stored import CHANGED
from tests.fixtures.tables import each
from trtcal.data import open_dataset
from trtcal.data.feeds import Cursor
from trtcal.errors import InputError

ROWS = np.random.default_rng(3).standard_normal((7, 3, 8, 8)).astype(np.float32)
PARTS = [slice(0, 1), slice(1, 5), slice(5, 7)]


@pytest.fixture
def model(tmp_path):
    return model_of(tmp_path / "net.onnx")


def feeds(**more):
    return [
        {"x": ROWS[part], **{name: array[part] for name, array in more.items()}} for part in PARTS
    ]


def script(tmp_path, body, name="loader.py"):
    path = tmp_path / name
    path.write_text(f"import numpy as np\n{body}\n")
    return path


LOADER = """
def load_data():
    rng = np.random.default_rng(3)
    rows = rng.standard_normal((7, 3, 8, 8)).astype(np.float32)
    for start, stop in ((0, 1), (1, 5), (5, 7)):
        yield {"x": rows[start:stop]}
"""


def stored(kind, tmp_path):
    if kind == "npz":
        np.savez(tmp_path / "data.npz", x=ROWS)
        return tmp_path / "data.npz"
    if kind == "json":
        save_json(feeds(), str(tmp_path / "inputs.json"))
        return tmp_path / "inputs.json"
    if kind == "script":
        return script(tmp_path, LOADER)
    (tmp_path / kind).mkdir()
    if kind == "npy":
        np.save(tmp_path / kind / "x.npy", np.asfortranarray(ROWS))
    else:  # a file for each iteration, as newer versions of Polygraphy write
        for number, feed in enumerate(feeds()):
            save_json(feed, str(tmp_path / kind / f"{number:010}.json"))
    return tmp_path / kind


@pytest.mark.parametrize("kind", ["npy", "json", "jsons", "script"])
def test_every_kind_gives_the_same_rows_and_fingerprint(tmp_path, model, kind):
    wanted = open_dataset(stored("npz", tmp_path), model)
    data = open_dataset(stored(kind, tmp_path), model)
    assert data.fingerprint == wanted.fingerprint
    assert (len(data), data.inputs) == (7, ("x",))
    for size in (1, 3, 100):
        assert (everything(data, size) == ROWS).all()
    assert [len(batch["x"]) for batch in data.batches(3)] == [3, 3, 1]


def test_several_inputs_and_labels_in_feeds(tmp_path):
    model = model_of(tmp_path / "net.onnx", inputs=("x", "y"))
    more = {"y": ROWS * 2, "labels": np.arange(7), "spare": ROWS}
    save_json(feeds(**more), str(tmp_path / "inputs.json"))
    data = open_dataset(tmp_path / "inputs.json", model)
    np.savez(tmp_path / "same.npz", x=ROWS, **more)
    assert data.labels.tolist() == list(range(7))
    assert data.unused == ("spare",)
    assert (everything(data, 3, "y") == ROWS * 2).all()
    assert data.fingerprint == open_dataset(tmp_path / "same.npz", model).fingerprint


def test_swapped_inputs_have_another_fingerprint(tmp_path):
    model = model_of(tmp_path / "net.onnx", inputs=("x", "y"))
    prints = set()
    for x, y in ((ROWS, ROWS * 2), (ROWS * 2, ROWS)):
        np.savez(tmp_path / "data.npz", x=x, y=y)
        prints.add(open_dataset(tmp_path / "data.npz", model).fingerprint)
    assert len(prints) == 2


def test_the_marks_of_older_polygraphy_are_read(tmp_path, model):
    packed = io.BytesIO()
    np.save(packed, ROWS)
    text = base64.b64encode(packed.getvalue()).decode()
    mark = {"array": text, "__polygraphy_encoded_ndarray": "polygraphy_serialized_json_type"}
    (tmp_path / "old.json").write_text(json.dumps([{"x": mark}]))
    assert (everything(open_dataset(tmp_path / "old.json", model)) == ROWS).all()


def pickled():
    packed = io.BytesIO()
    np.save(packed, np.array([print]), allow_pickle=True)
    return base64.b64encode(packed.getvalue()).decode()


@each(
    "value, says",
    [
        ([], "are empty"),
        ([[1, 2]], "feed 0"),
        ({"lst": [], "polygraphy_class": "RunResults"}, "RunResults"),
        ([{"x": [1, 2]}], "'x' is a list, not a numpy array"),
        ([{"x": {"tensor": "", "polygraphy_class": "Tensor"}}], "Tensor"),
        ([{"x": {"array": "?", "polygraphy_class": "ndarray"}}], "'x' cannot be read"),
        ([{"x": {"array": 3, "polygraphy_class": "ndarray"}}], "not a numpy array"),
        ([{"x": {"array": pickled(), "polygraphy_class": "ndarray"}}], "'x' cannot be read"),
        ([{"x": {"array": "", "polygraphy_class": "ndarray"}}], "'x' cannot be read"),
    ],
)
def test_json_that_is_no_inputs_is_refused(tmp_path, model, value, says):
    (tmp_path / "inputs.json").write_text(json.dumps(value))
    with fails(InputError, says):
        open_dataset(tmp_path / "inputs.json", model)


def test_broken_json_and_missing_files_are_refused(tmp_path, model):
    (tmp_path / "inputs.json").write_text("[{")
    for name in ("inputs.json", "none.json", "none.py"):
        with fails(InputError, name):
            open_dataset(tmp_path / name, model)


def zeros(*shape, dtype=np.float32):
    return np.zeros(shape, dtype)


NAN = zeros(2, 3, 8, 8)
NAN[1, 0, 0, 0] = np.nan


@pytest.mark.parametrize(
    ("second", "says"),
    [
        ({"y": zeros(1, 3, 8, 8)}, "y"),
        ({"x": zeros(1, 3, 8, 8, dtype=np.float64)}, "float64"),
        ({"x": zeros(8, 8)}, "[8, 8]"),
        ({"x": zeros()}, "[]"),
        ({"x": zeros(0, 3, 8, 8)}, "feed 1"),
        ({"x": NAN}, "sample 3"),
        ({"x": zeros(1, 3, 8, 8), "labels": np.zeros(1, np.int64)}, "labels"),
    ],
)
def test_feeds_that_do_not_fit_are_refused(tmp_path, second, says):
    model = model_of(tmp_path / "net.onnx", ("n", 3, "h", 8))
    save_json([{"x": zeros(2, 3, 8, 8)}, second], str(tmp_path / "inputs.json"))
    with fails(InputError, says):
        open_dataset(tmp_path / "inputs.json", model)


def test_inputs_of_one_feed_need_the_same_rows(tmp_path):
    model = model_of(tmp_path / "net.onnx", inputs=("x", "y"))
    save_json([{"x": ROWS, "y": ROWS[:2]}], str(tmp_path / "inputs.json"))
    with fails(InputError, "inputs.json"):
        open_dataset(tmp_path / "inputs.json", model)


def test_a_fixed_batch_is_cut_from_feeds_of_any_size(tmp_path):
    save_json(feeds(), str(tmp_path / "inputs.json"))
    with fails(InputError, "7 samples", "at 2"):
        open_dataset(tmp_path / "inputs.json", model_of(tmp_path / "two.onnx", (2, 3, 8, 8)))


def test_an_axis_of_a_sample_may_be_empty(tmp_path):
    model = model_of(tmp_path / "past.onnx", ("n", "past", 8, 8))
    samples = [{"x": zeros(1, size, 8, 8)} for size in (0, 2, 0, 0)]
    digests = set()
    for data, sizes in ((samples, [1, 1, 2]), ({"x": zeros(4, 0, 8, 8)}, [4])):
        dataset = open_dataset(data, model)
        assert [len(batch["x"]) for batch in dataset.batches(4)] == sizes
        digests.add(dataset.fingerprint)
    assert len(digests) == 2


def test_a_script_is_run_anew_for_each_pass(tmp_path, model):
    path = script(
        tmp_path,
        "rng = np.random.default_rng(0)\n"
        "def load_data():\n"
        "    for _ in range(3):\n"
        "        yield {'x': rng.standard_normal((2, 3, 8, 8)).astype(np.float32)}",
    )
    data = open_dataset(path, model)
    next(data.batches(1))
    assert (everything(data) == everything(data)).all()


def test_a_script_that_yields_other_data_in_each_pass_is_noticed(tmp_path, model):
    body = "def load_data():\n    yield {'x': np.random.rand(2, 3, 8, 8).astype(np.float32)}"
    data = open_dataset(script(tmp_path, body), model)
    with fails(InputError, CHANGED, hint="seed"):
        everything(data)


def test_labels_that_differ_between_passes_are_noticed(tmp_path, model):
    body = (
        "def load_data():\n"
        "    yield {'x': np.zeros((2, 3, 8, 8), np.float32), 'labels': np.random.bytes(0) or"
        " np.random.randint(0, 1 << 60, 2)}"
    )
    data = open_dataset(script(tmp_path, body), model)
    with fails(InputError, CHANGED):
        everything(data)


def test_another_function_lists_and_neighbours_of_a_script(tmp_path, model, capsys):
    (tmp_path / "neighbour_of_loader.py").write_text("COUNT = 3\n")
    path = script(
        tmp_path,
        "def mine():\n"
        "    from neighbour_of_loader import COUNT\n"
        "    print('loading')\n"
        "    return [{'x': np.ones((COUNT, 3, 8, 8), np.float32)}]",
    )
    data = open_dataset(tmp_path / f"{path.name}:mine", model)
    assert (len(data), data.name) == (3, "loader")
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "loading" in printed.err


def test_buffers_that_a_script_fills_again_are_copied(tmp_path, model):
    path = script(
        tmp_path,
        "def load_data():\n"
        "    buffer = np.zeros((1, 3, 8, 8), np.float32)\n"
        "    for number in range(4):\n"
        "        buffer[:] = number\n"
        "        yield {'x': buffer}",
    )
    batches = list(open_dataset(path, model).batches(2))
    assert [batch["x"][:, 0, 0, 0].tolist() for batch in batches] == [[0, 1], [2, 3]]


def test_tensors_with_a_numpy_method_are_taken(tmp_path, model):
    body = (
        "class Tensor:\n"
        "    def numpy(self):\n"
        "        return np.ones((2, 3, 8, 8), np.float32)\n"
        "def load_data():\n"
        "    yield {'x': Tensor()}"
    )
    assert (everything(open_dataset(script(tmp_path, body), model)) == 1).all()


@each(
    "body, says",
    [
        ("def load_data():\n    yield 1 / 0", "ZeroDivisionError"),
        ("def load_data(:", "SyntaxError"),
        ("import nowhere_at_all", "ModuleNotFoundError"),
        ("def load_data():\n    raise SystemExit(0)", "SystemExit"),
        ("def load_data():\n    return None", "TypeError"),
        ("def load_data(path):\n    return []", "TypeError"),
        ("def other(): pass", "load_data"),
        ("def load_data():\n    return []", "are empty"),
        ("def load_data():\n    yield 'x'", "feed 0"),
        (
            "def load_data():\n    yield np.ones(3)",
            "float64",
        ),
        ("def load_data():\n    yield {'x': [1.0]}", "'x' is a list, not an array"),
    ],
)
def test_mistakes_in_a_script_are_named(tmp_path, model, body, says):
    with fails(InputError, says):
        open_dataset(script(tmp_path, body), model)


def test_memory_stays_flat_whatever_a_script_yields(tmp_path):
    model = model_of(tmp_path / "net.onnx", ("n", 3, 64, 64))
    body = (
        "def load_data():\n"
        "    for number in range({count}):\n"
        "        yield {{'x': np.full((5, 3, 64, 64), number, np.float32)}}"
    )
    few = peak(script(tmp_path, body.format(count=5), "few.py"), model)
    many = peak(script(tmp_path, body.format(count=40), "many.py"), model)
    assert many < few + 2 * 3 * 64 * 64 * 4  # of 175 samples more


def peak(path, model):
    tracemalloc.start()
    try:
        for _ in open_dataset(path, model).batches(8):
            pass
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@given(
    st.lists(st.integers(1, 5), min_size=1), st.lists(st.tuples(st.booleans(), st.integers(0, 9)))
)
def test_a_cursor_takes_and_skips_rows_whatever_the_feeds(rows, steps):
    samples = np.arange(sum(rows))
    cursor = Cursor({"x": part} for part in np.split(samples, np.cumsum(rows)[:-1]))
    position = 0
    for taken, count in steps:
        wanted = samples[position : position + count].tolist()
        got = cursor.take(count) if taken else cursor.skip(count)
        assert not taken or ([*got["x"]] if got else []) == wanted
        position += len(wanted)
        assert cursor.position == position


def test_an_input_called_labels_is_an_input(tmp_path):
    model = model_of(tmp_path / "net.onnx", ("n",), TensorProto.INT64, ("labels",))
    np.savez(tmp_path / "data.npz", labels=np.arange(3))
    data = open_dataset(tmp_path / "data.npz", model)
    assert data.labels is None
    assert data.inputs == ("labels",)
