import numpy as np
import pytest

from tests.data.pictures import PLAIN, draw, gallery, model_of
from tests.fixtures.fails import fails
from tests.fixtures.tables import each
from trtcal.data import open_dataset
from trtcal.errors import InputError


@pytest.fixture
def model(tmp_path):
    return model_of(tmp_path / "net.onnx")


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "pictures"


def opened(folder, model, labels):
    return open_dataset(folder, model, PLAIN, labels)


def test_class_folders_are_numbered_in_order_and_empty_ones_count(folder, model):
    for number, name in enumerate(["dog/a.png", "cat/b.png", "dog/deep/c.png", "eel/d.png"]):
        draw(folder / name, number)
    (folder / "cow").mkdir()
    data = opened(folder, model, "folders")
    assert data.files == ("cat/b.png", "dog/a.png", "dog/deep/c.png", "eel/d.png")
    assert data.labels.tolist() == [0, 2, 2, 3]
    assert data.labels.dtype == np.int64
    assert opened(folder, model, None).labels is None


def test_an_image_outside_the_class_folders_is_refused(folder, model):
    draw(folder / "cat" / "a.png")
    draw(folder / "b.png")
    with fails(InputError, "b.png"):
        opened(folder, model, "folders")


@pytest.mark.parametrize(("names", "fine"), [(["00", "01", "02"], True), (["1", "2", "10"], False)])
def test_folders_named_by_numbers_must_have_those_places(folder, model, names, fine):
    for name in names:
        draw(folder / name / "a.png")
    if fine:
        assert opened(folder, model, "folders").labels.tolist() == [0, 1, 2]
        return
    with fails(InputError, "'1'"):
        opened(folder, model, "folders")


def test_labels_from_a_table_follow_the_images(folder, model):
    gallery(folder, 3)
    draw(folder / "sub" / "x,y.png", 7)
    (folder / "labels.csv").write_text(
        '\ufefffile,label,who\n001.png,5,me\n"sub/x,y.png",-1,\n000.png,3,\n002.png, 4 ,\n'
    )
    data = opened(folder, model, "csv")
    assert data.labels.tolist() == [3, 5, 4, -1]
    assert data.unused == ()


def test_labels_are_part_of_the_fingerprint_as_in_an_npz(folder, model, tmp_path):
    images = gallery(folder, 3)
    (folder / "labels.csv").write_text("file,label\n000.png,1\n001.png,0\n002.png,1\n")
    np.savez(tmp_path / "same.npz", x=images, labels=np.array([1, 0, 1], np.uint8))
    labelled = opened(folder, model, "csv").fingerprint
    assert labelled == open_dataset(tmp_path / "same.npz", model).fingerprint
    assert labelled != opened(folder, model, None).fingerprint


@each(
    "text, says",
    [
        (None, "labels.csv"),
        ("", "line 1"),
        ("name,class\na,1\n", "line 1"),
        ("file,label\n000.png,1\n", "001.png"),
        ("file,label\n000.png,1\n001.png,cat\n", "line 3"),
        ("file,label\n000.png,1.0\n", "'1.0'"),
        ("file,label\n000.png\n", "None"),
        ("file,label\n000.png,99999999999999999999\n", "line 2"),
        ("file,label\n000.png,1\n000.png,1\n", "000.png"),
        ("file,label\n000.png,1\n001.png,1\nx.png,1\n", "x.png"),
        (b"file,label\n\xff\xfe,1\n", "cannot be read"),
    ],
)
def test_mistakes_in_a_table_are_named(folder, model, text, says):
    gallery(folder, 2)
    if text is not None:
        data = text if isinstance(text, bytes) else text.encode()
        (folder / "labels.csv").write_bytes(data)
    with fails(InputError, says):
        opened(folder, model, "csv")


def test_labels_declared_for_data_without_any_are_refused(model, tmp_path):
    np.savez(tmp_path / "data.npz", x=np.zeros((2, 3, 8, 8), np.float32))
    with fails(InputError, "csv"):
        opened(tmp_path / "data.npz", model, "csv")
    np.savez(tmp_path / "data.npz", x=np.zeros((2, 3, 8, 8), np.float32), labels=[1, 2])
    assert opened(tmp_path / "data.npz", model, "csv").labels.tolist() == [1, 2]
