import os
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from onnx import TensorProto
from PIL import Image

from tests.data.pictures import PLAIN, draw, everything, gallery, model_of
from tests.fixtures.fails import fails
from tests.fixtures.stored import CHANGED
from tests.fixtures.tables import each
from trtcal.data import images, open_dataset
from trtcal.data.preprocessing import Preprocess
from trtcal.errors import InputError


@pytest.fixture
def model(tmp_path):
    return model_of(tmp_path / "net.onnx")


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "pictures"


def test_images_become_batches_in_the_order_of_their_paths(folder, model):
    names = ["b.PNG", "a/z.bmp", "a.png", "c/d/e.webp", "B.tiff"]
    drawn = {name: draw(folder / name, number) for number, name in enumerate(names)}
    drawn.pop("c/d/e.webp")  # lossy
    (folder / "c" / "d" / "e.webp").unlink()
    data = open_dataset(folder, model, PLAIN)
    assert data.files == ("B.tiff", "a.png", "a/z.bmp", "b.PNG")
    expected = np.stack([drawn[name] for name in data.files]).transpose(0, 3, 1, 2)
    assert [len(feeds["x"]) for feeds in data.batches(3)] == [3, 1]
    assert (everything(data, 3) == expected).all()
    assert (len(data), data.inputs, data.name, data.labels) == (4, ("x",), "pictures", None)


@each("ending", ["jpg", "jpeg", "png", "bmp", "webp", "gif", "tif", "ppm"])
def test_the_usual_formats_are_read(folder, model, ending):
    draw(folder / ending / f"one.{ending}")
    assert everything(open_dataset(folder / ending, model, PLAIN)).shape == (1, 3, 8, 8)


def test_other_files_are_named_and_hidden_ones_left_out(folder, model):
    gallery(folder, 1)
    for name in ("notes.txt", "labels.csv", ".hidden.png", ".git/x.png"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("")
    data = open_dataset(folder, model, PLAIN)
    assert data.unused == ("labels.csv", "notes.txt")
    assert len(data) == 1


def test_links_are_followed_but_never_in_circles(folder, model, tmp_path):
    gallery(folder / "a", 2)
    gallery(tmp_path / "elsewhere", 1)
    (folder / "a" / "up").symlink_to(folder)
    (folder / "linked").symlink_to(tmp_path / "elsewhere")
    data = open_dataset(folder, model, PLAIN)
    assert data.files == ("a/000.png", "a/001.png", "linked/000.png")


def test_images_that_nobody_declared_are_refused_with_the_table_to_write(folder, model):
    gallery(folder, 1)
    with fails(InputError, "pictures", hint='images = { channels = "RGB", layout = "NCHW"'):
        open_dataset(folder, model)


def test_the_fingerprint_is_that_of_the_same_data_as_arrays(folder, model, tmp_path):
    images = gallery(folder)
    np.savez(tmp_path / "same.npz", x=images)
    arrays = open_dataset(tmp_path / "same.npz", model)
    for size in (1, 3, 32):
        data = open_dataset(folder, model, PLAIN)
        assert (everything(data, size) == images).all()
        assert data.fingerprint == arrays.fingerprint
    draw(folder / "004.png", 99)
    assert open_dataset(folder, model, PLAIN).fingerprint != arrays.fingerprint


def test_a_pass_already_made_gives_the_fingerprint_without_another(folder, model, monkeypatch):
    gallery(folder, 4)
    data = open_dataset(folder, model, PLAIN)
    next(data.batches(2))  # not a whole pass
    everything(data)
    monkeypatch.setattr(data, "read", None)
    assert data.fingerprint.startswith("sha256:")


def test_images_that_change_between_two_passes_are_noticed(folder, model):
    gallery(folder, 4)
    data = open_dataset(folder, model, PLAIN)
    everything(data)
    draw(folder / "002.png", 99)
    with fails(InputError, CHANGED):
        everything(data)


def test_memory_does_not_grow_with_the_number_of_images(folder, tmp_path):
    model = model_of(tmp_path / "net.onnx", ("n", 3, 64, 64))
    gallery(folder / "a", 16, height=64, width=64)
    few = peak_of_a_pass(folder, model)
    for number in range(5):
        gallery(folder / f"b{number}", 16, height=64, width=64)
    sample = 3 * 64 * 64 * 4
    assert peak_of_a_pass(folder, model) < few + 4 * sample  # 80 more samples


def peak_of_a_pass(folder, model):
    data = open_dataset(folder, model, PLAIN)
    tracemalloc.start()
    try:
        for feeds in data.batches(8):
            assert len(feeds["x"]) == 8
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_batches_are_fresh_arrays(folder, model):
    gallery(folder, 4)
    first, second = open_dataset(folder, model, PLAIN).batches(2)
    assert not np.shares_memory(first["x"], second["x"])


@pytest.mark.parametrize(
    ("shape", "kind", "inputs"),
    [
        (("n", 3, 8, 8), TensorProto.FLOAT, ("x", "mask")),
        (("n", 8), TensorProto.FLOAT, ("x",)),
        (("n", 3, 8, 8), TensorProto.STRING, ("x",)),
    ],
)
def test_models_that_take_no_images_are_refused(folder, tmp_path, shape, kind, inputs):
    gallery(folder, 1)
    model = model_of(tmp_path / "net.onnx", shape, kind, inputs)
    with fails(InputError, "pictures"):
        open_dataset(folder, model, PLAIN)


def test_images_of_a_wrong_shape_are_refused(folder, model):
    draw(folder / "a.png", height=9)
    with fails(InputError, "a.png", "[3, 9, 8]", hint="resize"):
        open_dataset(folder, model, PLAIN)
    with fails(InputError, "[9, 8, 3]"):
        open_dataset(folder, model, replace(PLAIN, layout="NHWC"))


def test_where_the_model_takes_any_size_a_batch_has_images_of_one(folder, tmp_path):
    model = model_of(tmp_path / "net.onnx", ("n", 3, "h", "w"))
    for number, height in enumerate((8, 8, 9, 9, 9, 8)):
        draw(folder / f"{number}.png", height=height)
    data = open_dataset(folder, model, PLAIN)
    assert [feeds["x"].shape[::2] for feeds in data.batches(2)] == [(2, 8), (2, 9), (1, 9), (1, 8)]
    assert [feeds["x"].shape[::2] for feeds in data.batches(4, 1)] == [(1, 8), (3, 9), (1, 8)]
    assert data.shapes == ((2, {"x": (3, 8, 8)}), (3, {"x": (3, 9, 8)}), (1, {"x": (3, 8, 8)}))


@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_the_size_of_an_image_is_that_after_it_was_turned_and_resized(
    folder, tmp_path, orientation
):
    model = model_of(tmp_path / "net.onnx", ("n", 3, "h", "w"))
    exif = Image.Exif()
    exif[274] = orientation
    folder.mkdir()
    Image.new("RGB", (12, 20)).save(folder / "a.jpg", exif=exif)
    for settings in (PLAIN, replace(PLAIN, resize=6)):
        data = open_dataset(folder, model, settings)
        feeds = next(data.batches(1))["x"]
        assert (feeds.shape[2] > feeds.shape[3]) == (orientation < 5)
        assert data.shapes == ((1, {"x": feeds.shape[1:]}),)


def test_a_fixed_batch_must_divide_the_images(folder, tmp_path):
    gallery(folder, 5)
    with fails(InputError, "5 samples", "at 4"):
        open_dataset(folder, model_of(tmp_path / "net.onnx", (4, 3, 8, 8)), PLAIN)


def test_a_folder_of_images_and_arrays_is_not_guessed_at(folder, model):
    gallery(folder, 1)
    np.save(folder / "x.npy", np.zeros((1, 3, 8, 8), np.float32))
    with fails(InputError, ".npy"):
        open_dataset(folder, model, PLAIN)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_folder_that_cannot_be_read_is_refused(folder, model):
    gallery(folder, 1)
    (folder / "locked").mkdir(mode=0)
    with fails(InputError, "locked"):
        open_dataset(folder, model, PLAIN)


def test_later_passes_decode_only_images_that_changed_or_had_no_room(tmp_path, monkeypatch):
    size = draw(tmp_path / "a.png", 1).size
    draw(tmp_path / "b.png", 2), draw(tmp_path / "c.png", 3)
    monkeypatch.setattr(images, "KEPT_BYTES", 2 * size)
    planes = Preprocess(PLAIN, "uint8").pixels
    decoded = []
    kept = images.KeptPixels(lambda path: decoded.append(path.name) or planes(path))
    for _ in range(2):
        for name in ("a.png", "b.png", "c.png"):
            assert (kept.pixels(tmp_path / name) == planes(tmp_path / name)).all()
    assert decoded == ["a.png", "b.png", "c.png", "c.png"]
    draw(tmp_path / "b.png", 4)
    os.utime(tmp_path / "b.png", ns=(0, 0))
    assert (kept.pixels(tmp_path / "b.png") == planes(tmp_path / "b.png")).all()
    assert decoded[4:] == ["b.png"]
