"""`trtcal sensitivity`: the table of all layers, ranked, in print, as JSON and in a file."""

import json

import pytest

from tests.fixtures.networks import conv_net, samples
from trtcal.cli.main import run_command
from trtcal.documents import read_document


@pytest.fixture
def words(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    net, data = conv_net(tmp_path / "net.onnx"), samples(tmp_path / "data.npz")
    assert run_command(["calibrate", str(net), "--data", str(data)]) == 0
    return ["sensitivity", str(net), "--data", str(data)]


def test_layers_are_ranked_and_written(words, tmp_path, capsys):
    capsys.readouterr()
    assert run_command([*words, "--json", "-o", "table.json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document == read_document(tmp_path / "table.json", "sensitivity")
    layers = document["layers"]
    assert {one["layer"] for one in layers} == {"first", "second", "add", "gemm"}
    shares = [one["share"] for one in layers]
    assert shares == sorted(shares, reverse=True)
    assert document["measure"] == "kl"
    assert layers[0]["alone"]["kl"] > layers[-1]["alone"]["kl"]
    assert layers[0]["left"]["kl"] < document["whole"]["kl"]
    assert run_command(["verify", "table.json"]) == 0


def test_the_table_names_the_worst_layer_first(words, capsys):
    capsys.readouterr()
    assert run_command([*words, "--samples", "8", "--exact"]) == 0
    printed = capsys.readouterr().out
    assert "8 samples" in printed
    assert printed.index("gemm") < min(printed.index(name) for name in ("first", "second", "add"))


@pytest.mark.parametrize(
    "more", [["--data", "no.npz"], ["--calibration", "no.json"], ["--samples", "1"]]
)
def test_bad_input_is_one_line_and_status_2(words, tmp_path, capsys, more):
    capsys.readouterr()
    assert run_command([*words, "-o", "table.json", *more]) == 2
    assert capsys.readouterr().err.startswith("error: ")
    assert not (tmp_path / "table.json").exists()
