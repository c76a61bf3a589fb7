"""`trtcal calibrate --how-many`, and the note where samples are few."""

import json

import pytest

from tests.fixtures.commands import refused, run, succeed
from tests.fixtures.networks import conv_net, samples
from trtcal.documents import digest_document, read_document

ARGUMENTS = ("calibrate", "net.onnx", "--data", "data.npz")


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    conv_net(tmp_path / "net.onnx")
    samples(tmp_path / "data.npz", count=96)
    return tmp_path


def test_it_prints_the_curve_and_writes_nothing(place, capsys):
    before = sorted(place.iterdir())
    out = succeed(capsys, *ARGUMENTS, "--how-many", "--method", "minmax")
    assert "minmax, loss (KL divergence in nats) on the last 24 samples" in out
    assert [line.split()[1] for line in out.splitlines() if line.startswith("│")] == ["8", "16"]
    assert "samples" in out.splitlines()[-1]
    assert sorted(place.iterdir()) == before


def test_the_document_is_sealed_and_the_same_as_the_json(place, capsys):
    out = succeed(capsys, *ARGUMENTS, "--how-many", "--json", "-o", "curve.json")
    document = json.loads(out)
    assert document == read_document(place / "curve.json", "learning-curve", 2)
    assert document["digest"] == digest_document(document)
    assert [point["samples"] for point in document["points"]] == [8, 16]
    assert not (place / "calibration.json").exists()


def test_too_few_samples_are_refused(place, capsys):
    samples(place / "data.npz", count=79)
    status, out, err = run(capsys, *ARGUMENTS, "--how-many")
    assert (status, out) == (2, "")
    assert "79 samples" in err
    assert "96 samples or more" in err


@pytest.mark.parametrize(
    "option", [("--histograms", "h.npz"), ("--workers", 2), ("--profile",), ("--max-memory", "1GB")]
)
def test_options_without_a_part_in_it_are_refused(place, capsys, option):
    err = refused(capsys, *ARGUMENTS, "--how-many", *option)
    assert f"--how-many and {option[0]}" in err


@pytest.mark.parametrize(("count", "is_few"), [(31, True), (32, False)])
def test_few_samples_are_noted_where_ranges_are_chosen(place, capsys, count, is_few):
    samples(place / "data.npz", count=count)
    status, out, err = run(capsys, *ARGUMENTS)
    assert status == 0
    assert "wrote calibration.json" in out
    assert (f"{count} samples are few" in err) == is_few
    assert ("--how-many" in err) == is_few
