"""`trtcal layers` from the command line."""

import json

import pytest

from tests.evidence.layers.engines import float_residual, int8_residual, write
from tests.fixtures.commands import answer, run, succeed
from tests.fixtures.tables import each


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a", float_residual())
    write(tmp_path / "b", int8_residual())
    return tmp_path


LAYERS = "layers"


def test_show_prints_shares_layers_findings_and_sums(place, capsys):
    status, out, err = run(capsys, LAYERS, "show", "a", "--gpu", "a100-sxm4-40gb", "--top", 4)
    assert (status, "a/profile.json" in err) == (0, True)
    for text in (
        *("60.9 %", "share of time", "estimates for A100", "unfused_qdq: a quantize"),
        *("layer QuantizeLinear_2", "copies, origin QDQ: 3, 0.11 ms", "10 layers, 0.64 ms"),
        "2 more findings",
    ):
        assert text in out


def test_show_without_times_shares_bytes(place, capsys):
    status, out, err = run(capsys, LAYERS, "show", "a/graph.json")
    assert (status, err) == (0, "")
    assert "share of bytes" in out
    assert "no times" in out


def test_json_is_all_that_json_prints(place, capsys):
    status, out, err = run(capsys, LAYERS, "show", "a", "--json", "--gpu", "t4")
    document = json.loads(out)
    assert (status, err) == (0, "")
    assert len(document["layers"]) == 10
    assert sum(one["time_ms"] for one in document["by_precision"]) == pytest.approx(0.64)
    assert document["layers"][1]["estimate"]["bound"] == "memory"
    assert document["target"] == "T4"


def test_diff_explains_and_gives_the_records(place, capsys):
    out = succeed(capsys, LAYERS, "diff", "a", "b")
    assert "The total went from 0.640 ms to 0.340 ms" in out
    profiles = ("--profile-a", "a/profile.json", "--profile-b", "b/profile.json")
    document = answer(capsys, LAYERS, "diff", "a/graph.json", "b/graph.json", *profiles)
    assert document["unit"] == "ms"
    assert len(document["reformats_gone"]) == 3
    assert document["in_words"][0].startswith("The total went from")


@each(
    "line",
    [
        *("show none", "show .", "show a --profile none.json", "show a --gpu none"),
        *("show a/profile.json", "diff a none", "diff a b --profile-a a/graph.json"),
    ],
)
def test_what_is_wrong_is_said_with_status_2(place, capsys, line):
    status, out, err = run(capsys, LAYERS, *line.split())
    assert (status, out) == (2, "")
    assert err.startswith("error: ")
    assert "hint: " in err


def test_names_cannot_disturb_the_terminal(place, capsys):
    timed = float_residual()
    timed[2][0]["Name"] = "pool\x1b[31m\n\u202ered"
    write(place / "c", timed)
    out = succeed(capsys, LAYERS, "show", "c/graph.json")
    assert not {"\x1b", "\u202e"} & set(out)
