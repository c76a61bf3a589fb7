"""A run's settings read as the configuration that it was made with."""

import dataclasses

import pytest

from tests.fixtures.fails import fails
from trtcal.config import parse_config
from trtcal.documents import read_document, write_document
from trtcal.errors import InputError
from trtcal.runs.settings import SCRIPTS, SETTINGS, read_settings, write_settings

TEXT = """
model = "net.onnx"
task = "classification"
outputs = ["y"]
limits = ["top1 >= -1.0", "int8: latency_p50 <= +5%", "map@slices >= 0.5", "broken_fusions <= 0"]
[prepare]
skip = ["scales"]
passes = ["own.py:one"]
[images]
channels = "RGB"
layout = "NCHW"
scale = "1/255"
mean = [0.1, 0.2, 0.3]
resize = [8, 9]
crop = 7
[data]
constants = { k = [1.0, 2.0] }
[calibration]
data = "images"
labels = "folders"
methods = ["minmax", "percentile"]
parameters.percentile = { percentile = 99.9 }
[evaluation]
data = "load.py:test"
slices = "slices.csv"
metric = "metric.py"
rounds = 7
[plans.mixed]
default = "fp16"
layers = { "a/b.c" = "fp32" }
rules = [{ pattern = "head/*", precision = "fp32" }]
method = "minmax"
[build]
targets = ["cpu", "sm89"]
shapes = { x = "1x3:2x3:4x3" }
rest = "fp32"
[[suppress]]
kind = "missing_range"
reason = "known"
[report]
price_per_hour = 2.5
[checkpoint]
on_delta = ["rerun"]
[store]
url = "store"
[cost]
tags = { team = "vision" }
prices = "prices.toml"
"""


@pytest.fixture
def config(tmp_path):
    (tmp_path / "own.py").write_text("def one(graph):\n    return 0\n")
    return parse_config(TEXT, tmp_path / "trtcal.toml")


def test_settings_read_as_the_configuration_that_was_written(config, tmp_path):
    write_settings(tmp_path / "run", config, tmp_path / "run")
    found = read_settings(tmp_path / "run")
    own = found.prepare.passes[0]
    assert own.parent.name == SCRIPTS
    assert str(own).endswith(".py:one")
    same = dataclasses.replace(found.prepare, passes=config.prepare.passes)
    skipped = {"path", "untrusted", "prepare"}
    assert same == config.prepare
    for item in dataclasses.fields(config):
        if item.name not in skipped:
            assert getattr(found, item.name) == getattr(config, item.name), item.name
    assert set(found.untrusted) == set(found.scripts.values())


def test_settings_hold_no_folder_of_this_machine(config, tmp_path):
    write_settings(tmp_path / "run", config, tmp_path / "run")
    assert str(tmp_path) not in (tmp_path / "run" / SETTINGS).read_text()


def test_a_script_that_was_changed_or_a_name_that_leads_out_is_refused(config, tmp_path):
    write_settings(tmp_path / "run", config, tmp_path / "run")
    script = next((tmp_path / "run" / SCRIPTS).iterdir())
    script.write_text("print('other')\n")
    with fails(InputError, script.name):
        read_settings(tmp_path / "run")
    path = tmp_path / "run" / SETTINGS
    document = read_document(path, "settings")
    write_document(path, {**document, "passes": ["../../own.py:one"]})
    with fails(InputError, "own.py"):
        read_settings(tmp_path / "run")
    write_document(path, {**document, "config": {"modell": "x"}})
    with fails(InputError, "settings.json", "modell", hint="'model'"):
        read_settings(tmp_path / "run")
    with fails(InputError, "settings.json"):
        read_settings(tmp_path)
