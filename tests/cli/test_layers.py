"""`trtcal layers` from the command line."""

import json

import pytest

from tests.evidence.layers.engines import float_residual, int8_residual, write
from trtcal.cli.main import run_command


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a", float_residual())
    write(tmp_path / "b", int8_residual())
    return tmp_path


def run(capsys, *arguments):
    status = run_command([str(one) for one in ("layers", *arguments)])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_show_prints_shares_layers_findings_and_sums(place, capsys):
    status, out, err = run(capsys, "show", "a", "--gpu", "a100-sxm4-40gb", "--top", 4)
    assert status == 0
    assert "times: a/profile.json" in err
    for text in (
        "60.9 %",
        "share of time",
        "estimates for A100",
        "unfused_qdq: a quantize",
        "layer QuantizeLinear_2",
    ):
        assert text in out
    assert "copies, origin QDQ: 3, 0.11 ms" in out
    assert "10 layers, 0.64 ms" in out
    assert "… and 2 more findings" in out


def test_show_without_times_shares_bytes(place, capsys):
    status, out, err = run(capsys, "show", "a/graph.json")
    assert (status, err) == (0, "")
    assert "share of bytes" in out
    assert "no times" in out


def test_json_is_all_that_json_prints(place, capsys):
    status, out, err = run(capsys, "show", "a", "--json", "--gpu", "t4")
    document = json.loads(out)
    assert (status, err) == (0, "")
    assert len(document["layers"]) == 10
    assert sum(one["time_ms"] for one in document["by_precision"]) == pytest.approx(0.64)
    assert document["layers"][1]["estimate"]["bound"] == "memory"
    assert document["target"] == "T4"


def test_diff_explains_and_gives_the_records(place, capsys):
    status, out, _ = run(capsys, "diff", "a", "b")
    assert status == 0
    assert "The total went from 0.640 ms to 0.340 ms" in out
    arguments = ("diff", "a/graph.json", "b/graph.json", "--profile-a", "a/profile.json")
    status, out, _ = run(capsys, *arguments, "--profile-b", "b/profile.json", "--json")
    document = json.loads(out)
    assert document["unit"] == "ms"
    assert len(document["reformats_gone"]) == 3
    assert document["in_words"][0].startswith("The total went from")


@pytest.mark.parametrize(
    "arguments",
    [
        ("show", "none"),
        ("show", "."),
        ("show", "a", "--profile", "none.json"),
        ("show", "a", "--gpu", "none"),
        ("show", "a/profile.json"),
        ("diff", "a", "none"),
        ("diff", "a", "b", "--profile-a", "a/graph.json"),
    ],
)
def test_what_is_wrong_is_said_with_status_2(place, capsys, arguments):
    status, out, err = run(capsys, *arguments)
    assert (status, out) == (2, "")
    assert err.startswith("error: ")
    assert "hint: " in err


def test_names_cannot_disturb_the_terminal(place, capsys):
    timed = float_residual()
    timed[2][0]["Name"] = "pool\x1b[31m\n\u202ered"
    write(place / "c", timed)
    status, out, _ = run(capsys, "show", "c/graph.json")
    assert status == 0
    assert "\x1b" not in out
    assert "\u202e" not in out
