"""The advice of every ending is run as it is printed: the verdict changes, or its interval narrows."""

import json
import re
import shlex

import numpy as np
import onnxruntime
import pytest

from tests.fixtures.commands import run
from tests.fixtures.slow import SLOW
from tests.ptq.nets import separable_net

GOOD = ("SHIP", "SHIP WITH CARE")
LIMIT = ("--limit", "top1 >= -1")
HIGH = "--limit 'sqnr_db >= 47'"
MANY = "--batch 1024"  # with which launches do not decide the estimated times


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with a network that INT8 ruins and optimizations restore; FP32 is mostly right."""
    monkeypatch.chdir(tmp_path)
    separable_net(tmp_path / "net.onnx")
    save("cal.npz", 128, seed=0)
    save("test.npz", 600, seed=1)
    return tmp_path


def save(path, count, seed):
    """Write images with labels, about which FP32 is wrong where two of its scores are close."""
    draw = np.random.default_rng(seed)
    images = draw.standard_normal((count, 3, 8, 8)).astype(np.float32)
    scores = onnxruntime.InferenceSession("net.onnx").run(None, {"x": images})[0]
    np.savez(path, x=images, labels=(scores + 0.1 * draw.gumbel(size=scores.shape)).argmax(1))


def ended(capsys, words):
    """Return the status of a command, what it prints, and the command that it advises."""
    status, out, err = run(capsys, *words)
    advised = re.findall(r"^next: trtcal (.*)$", err, re.MULTILINE)
    return status, out + err, shlex.split(advised[-1]) if advised else None


def after(capsys, line):
    """Run a command that has to end with advice; return its status and the words advised."""
    status, text, words = ended(capsys, shlex.split(line))
    assert words is not None, text
    assert words != shlex.split(line)
    return status, words


def verdict_of(folder):
    return json.loads((folder / "report.json").read_text())["measured"]["verdict"]


def limit_of(folder):
    (limit,) = verdict_of(folder)["limits"]
    return limit


def width(limit):
    return limit["high"] - limit["low"]


def made(capsys, *lines):
    for line in lines:
        assert run(capsys, *shlex.split(line), "-q")[0] == 0


PLAIN = ("calibrate net.onnx --data cal.npz", "quantize net.onnx -o int8.onnx")
RUN = "run net.onnx --data cal.npz --target cpu --no-history"


def test_a_run_where_int8_falls_short_optimizes_it_and_shows_both(place, capsys):
    _, text, _ = ended(capsys, shlex.split(f"{RUN} --test test.npz"))
    report = json.loads((place / "net-run" / "report.json").read_text())
    states = report["measured"]["judgements"]
    assert states["int8-auto"] == "broken"
    assert (states["int8-improved"], verdict_of(place / "net-run")["variant"]) == (
        "holds",
        "int8-improved",
    )
    assert re.search(r"the optimizations took \d+ s", text)
    assert [row["name"] for row in report["comparison"]["rows"]][-1] == "int8-improved"
    assert "int8-improved" in {build["model_name"] for build in report["builds"]}
    assert limit_of(place / "net-run")["level"] < 0.91  # three others break the limit: no fourth


@SLOW
def test_a_run_that_must_not_ship_advises_optimizations_and_then_a_test_that_ships(place, capsys):
    status, words = after(capsys, f"{RUN} --test test.npz --improve off")
    assert (status, verdict_of(place / "net-run")["word"]) == (1, "DO NOT SHIP")
    before = limit_of(place / "net-run")["value"]
    status, _, words = ended(capsys, [*words, "--no-history"])
    assert (status, verdict_of(place / "net-run")["word"]) == (0, "SHIP WITH CARE")
    assert before < -2 < -1 < limit_of(place / "net-run")["value"]
    status, text, _ = ended(capsys, words)
    assert (status, words[0], "SHIP WITH CARE: B holds" in text) == (0, "ab", True)


CONFIG = """
model = "net.onnx"
limits = ["sqnr_db >= 47"]
[calibration]
data = "cal.npz"
methods = ["percentile"]
[evaluation]
data = "test.npz"
[build]
targets = ["cpu"]
"""


@SLOW
def test_a_run_that_optimizations_do_not_save_advises_a_search_whose_plan_holds(place, capsys):
    (place / "trtcal.toml").write_text(CONFIG)
    status, words = after(capsys, "run --no-history")
    assert (status, verdict_of(place / "reports")["variant"]) == (1, "int8-improved")
    assert words[0] == "search"
    status, _, apply = ended(capsys, words)
    tested = json.loads((place / "search" / "search.json").read_text())["tested"]
    assert (status, tested["word"] in GOOD, tested["held_back"]) == (0, True, True)
    assert ended(capsys, apply)[0] == 0


@SLOW
def test_an_open_run_that_nothing_but_samples_can_settle_says_how_many(place, capsys):
    save("few.npz", 150, seed=4)
    line = f"{RUN} --test few.npz --improve fast"
    status, text, words = ended(capsys, shlex.split(line))
    assert (status, words) == (1, None)
    total, times = re.search(r"([\d,]+) in total, with an interval ([\d.]+) times", text).groups()
    before = limit_of(place / "net-run")
    save("few.npz", int(total.replace(",", "")), seed=4)
    ended(capsys, shlex.split(line))
    assert width(before) / width(limit_of(place / "net-run")) > 0.8 * float(times)


@SLOW
@pytest.mark.parametrize("judge", ["compare", "ab"])
def test_a_loss_advises_optimizations_with_which_the_limit_holds(place, capsys, judge):
    made(capsys, *PLAIN)
    save("test.npz", 2000, seed=1)
    line = f"{judge} net.onnx int8.onnx --data test.npz --limit 'top1 >= -1'"
    status, words = after(capsys, line)
    assert (status, words[:2]) == (1, ["quantize", "net.onnx"])
    assert ended(capsys, words)[0] == 0
    improved = words[words.index("-o") + 1]
    status, _, following = ended(capsys, shlex.split(line.replace("int8.onnx", improved)))
    other = {"compare": "ab", "ab": "compare"}[judge]
    assert (status, following[0]) == (0, other)
    status, _, report = ended(capsys, [*following, *LIMIT])
    assert (status, report[0]) == (0, "report")
    assert ended(capsys, report)[0] == 0


@SLOW
def test_optimizations_that_leave_it_open_advise_a_search_and_its_plan_no_second_one(place, capsys):
    made(capsys, PLAIN[0], "quantize net.onnx --data cal.npz --improve fast -o improved.onnx")
    status, words = after(capsys, f"ab net.onnx improved.onnx --data test.npz {HIGH}")
    assert (status, words[0]) == (1, "search")
    assert {"--optimizations", "--limit"} <= {*words}
    status, _, apply = ended(capsys, words)
    assert status == 0
    ended(capsys, apply)
    again = f"ab net.onnx {apply[-1]} --data test.npz --limit"
    status, text, following = ended(capsys, shlex.split(f"{again} 'sqnr_db >= 47'"))
    assert (status, following[0]) == (0, "compare"), text
    status, _, following = ended(capsys, shlex.split(f"{again} 'sqnr_db >= 90'"))
    assert (status, following) == (1, None)


@SLOW
@pytest.mark.parametrize("judge", ["compare", "ab"])
def test_few_samples_ask_for_as_many_as_narrow_the_interval(place, capsys, judge):
    made(capsys, "quantize net.onnx --data cal.npz --improve fast -o improved.onnx")
    save("few.npz", 150, seed=4)
    words = [judge, "net.onnx", "improved.onnx", "--data", "few.npz", *LIMIT]
    status, text, _ = ended(capsys, words)
    assert status == 1
    assert ended(capsys, [*words, "--allow-undecided"])[0] == 0
    total, times = re.search(r"([\d,]+) in total, with an interval ([\d.]+) times", text).groups()
    before = interval(place, judge)
    save("few.npz", int(total.replace(",", "")), seed=4)
    ended(capsys, words)
    assert before / interval(place, judge) > 0.8 * float(times)


def interval(place, judge):
    name = {"compare": "comparison.json", "ab": "ab.json"}[judge]
    measured = json.loads((place / name).read_text())["measured"]
    return width((measured["limits"] if judge == "compare" else measured["verdict"]["limits"])[0])


@SLOW
def test_a_search_without_a_plan_advises_a_limit_under_which_there_is_one(place, capsys):
    made(capsys, *PLAIN)
    line = (
        f"search net.onnx --data test.npz {MANY} --limit 'sqnr_db >= 60' --limit 'speedup >= 2.5'"
    )
    status, words = after(capsys, line)
    assert (status, words[0]) == (1, "search")
    status, _, apply = ended(capsys, words)
    assert (status, apply[0]) == (0, "quantize")


@SLOW
def test_a_search_starts_from_optimizations_where_int8_falls_short_and_keeps_all_in_int8(
    place, capsys
):
    made(capsys, *PLAIN)
    save("test.npz", 2000, seed=1)
    status, _, apply = ended(capsys, shlex.split(f"search net.onnx --data test.npz {MANY} -o s"))
    document = json.loads((place / "s" / "search.json").read_text())
    (plan,) = (row for row in document["front"] if row["recommended"])
    assert (status, plan["float_layers"], document["beside_int8"]) == (0, [], None)
    assert "s/improved.optimizations.npz" in apply
    assert ended(capsys, apply)[0] == 0
    ended(capsys, shlex.split(f"search net.onnx --data test.npz {MANY} --improve off -o p"))
    plain = json.loads((place / "p" / "search.json").read_text())
    (float_plan,) = (row for row in plain["front"] if row["recommended"])
    assert float_plan["sqnr_db"] < plan["sqnr_db"]


@SLOW
def test_a_plan_with_layers_in_float_is_compared_with_all_in_int8(place, capsys):
    made(capsys, *PLAIN)
    save("test.npz", 2000, seed=1)
    line = "search net.onnx --data test.npz --improve off --limit 'agreement >= -1' -o s"
    _, text, _ = ended(capsys, shlex.split(f"{line} --goal smallest {MANY}"))
    beside = json.loads((place / "s" / "search.json").read_text())["beside_int8"]
    assert 0 < beside["speed"] < 1
    assert beside["difference"]["low"] > 0
    assert re.search(r"beside all in INT8 it is .* times as fast .*95 % interval", text)
