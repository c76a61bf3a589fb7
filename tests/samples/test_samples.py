"""The samples of the gallery end as their committed reports and their model cards say."""

import json
import re

import numpy as np
import pytest

from tests.conftest import SAMPLES
from tests.fixtures.slow import SLOW
from trtcal.backends.registry import BACKENDS
from trtcal.cli.main import run_command
from trtcal.config import read_config

ROOT = SAMPLES.parent
RTX = BACKENDS["tensorrt-rtx"].availability()
NAMES = ("classifier", "detector", "vit")
SIZES = {"classifier": 1_800_000, "detector": 1_300_000, "vit": 900_000}


def read_report(name):
    return json.loads((ROOT / "reports" / f"{name}.json").read_text())


@SLOW
@pytest.mark.skipif(not RTX.works, reason=str(RTX.missing))
@pytest.mark.parametrize("name", NAMES)
def test_a_run_ends_as_its_committed_report_does(name, tmp_path, capsys):
    folder = tmp_path / "run"
    config = str(SAMPLES / name / "trtcal.toml")
    assert run_command(["run", config, "-o", str(folder), "--no-history"]) == 0
    made = json.loads((folder / "report.json").read_text())["measured"]
    kept = read_report(name)["measured"]
    assert made["verdict"]["word"] == kept["verdict"]["word"]
    assert made["verdict"]["reasons"] == kept["verdict"]["reasons"]
    printed = capsys.readouterr().out
    assert "p50 ms" not in printed  # nobody asked for times, and the target is a GPU
    assert re.search(r"sm89: (about \d\.\d\d times the speed of|too small to estimate)", printed)
    assert f"warning: {kept['verdict']['reasons'][0]}" in printed


def test_in_the_transformer_the_mixed_plan_is_chosen_by_its_outputs():
    report = read_report("vit")
    measured = report["measured"]
    assert measured["verdict"]["variant"] == "mixed"
    assert measured["judgements"]["int8-entropy"] == "broken"
    rows = {row["name"]: row["accuracy"] for row in report["comparison"]["rows"]}
    assert rows["mixed"]["sqnr_db"] > rows["int8-percentile"]["sqnr_db"] + 5


@pytest.mark.parametrize("name", NAMES)
def test_a_model_card_has_the_figure_of_the_float_model(name):
    row = read_report(name)["comparison"]["rows"][0]
    top1 = row["accuracy"]["top1"]
    figure = f"{top1:.2f} %" if top1 else f"{100 * row['means']['map']['value']['mean']:.1f} % mAP"
    assert figure in (SAMPLES / name / "MODEL_CARD.md").read_text()


@pytest.mark.parametrize("name", NAMES)
def test_no_test_scene_is_a_calibration_scene(name):
    config = read_config(SAMPLES / name / "trtcal.toml")
    seen, judged = (
        {one.tobytes() for one in np.load(part.data)["image"]}
        for part in (config.calibration, config.evaluation)
    )
    assert not seen & judged
    assert len(judged) == read_report(name)["comparison"]["samples"]


@pytest.mark.parametrize("name", NAMES)
def test_a_sample_is_small(name):
    assert (
        sum(file.stat().st_size for file in (SAMPLES / name).iterdir() if file.is_file())
        < SIZES[name]
    )


def test_the_demo_opens_the_page_that_its_run_writes():
    config = read_config(SAMPLES / "classifier" / "trtcal.toml")
    page = config.run_folder.resolve().relative_to(ROOT.resolve()) / "report.html"
    demo = (ROOT / "Makefile").read_text().split("demo: ")[1].split("\n\n")[0]
    assert f"$(CURDIR)/{page}" in demo
    assert "samples/classifier/trtcal.toml" in demo
