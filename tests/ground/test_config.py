import contextlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import SAMPLES
from tests.fixtures.fails import fails
from tests.fixtures.tables import each
from trtcal.config import CostConfig, read_config, read_tags
from trtcal.errors import InputError


def written(tmp_path, text):
    path = tmp_path / "trtcal.toml"
    path.write_text(text)
    return path


def test_the_samples_configuration_is_read():
    config = read_config(SAMPLES / "digits" / "trtcal.toml")
    assert config.model.name == "digits.onnx"
    assert config.calibration.method == "percentile"
    assert config.plans["mixed"].layers["head/gemm"] == "fp32"
    assert [str(one) for one in config.limits] == ["top1 >= -1.0 points"]


def test_the_price_of_an_hour_is_read(tmp_path):
    report = read_config(written(tmp_path, "[report]\nprice_per_hour = 2")).report
    assert (report.price_per_hour, report.currency) == (2.0, "USD")


def test_optimizations_are_asked_for(tmp_path):
    before = read_config(written(tmp_path, "[calibration]")).calibration
    assert (before.improve, before.improve_time_limit_s) == ("auto", 600.0)
    text = '[calibration]\nimprove = "best"\nimprove_time_limit_s = 90'
    asked = read_config(written(tmp_path, text)).calibration
    assert (asked.improve, asked.improve_time_limit_s) == ("best", 90.0)


def test_paths_start_from_the_files_folder(tmp_path):
    config = read_config(written(tmp_path, 'model = "m.onnx"\n[calibration]\ndata = "d.npz"'))
    assert config.model == tmp_path / "m.onnx"
    assert config.calibration.data == tmp_path / "d.npz"
    assert config.run_folder == tmp_path / "reports"


IN_TABLES = """
report: price = 1; price_per_hour = 0; price_per_hour = '1'; currency = 'dollars'
calibration: batch = 0; methods = []; methods = 'minmax'; percentile = 9; improve = 'most'
calibration: improve = true; improve_time_limit_s = -1
prepare: skipped = ['scales']; skip = 'scales'
"""


def mistakes():
    """Yield a table with a line that is wrong, and the key in it."""
    for row in IN_TABLES.strip().splitlines():
        table, _, lines = row.partition(": ")
        yield from ((f"[{table}]\n{one}", f"{table}.{one.split()[0]}") for one in lines.split("; "))


@each(
    "text, says",
    [
        ("model = ", "cannot be read"),
        ("modle = 'x'", "modle"),
        ("model = 3", "model"),
        *mistakes(),
        ("limits = 'top1 >= -1'", "limits"),
        ("limits = ['top1 > {a}']", "top1 > {a}"),
        ("limits = ['speedup >= 1.3 ms']", "speedup >= 1.3 ms"),
        ('[plans."../up"]\ndefault = "int8"', "plans.../up"),
        ("[plans.mixed]\nlayers = {a = true}", "plans.mixed.layers.a"),
    ],
)
def test_mistakes_are_named(tmp_path, text, says):
    with fails(InputError, says):
        read_config(written(tmp_path, text))


@each(
    "text, line, hint",
    [
        ('[build]\n\ntargets = "sm89"', '(line 3: targets = "sm89")', 'targets = ["cpu", "sm89"]'),
        ("[calibration]\nbatch = 0", "(line 2: batch = 0)", "batch = 32"),
        ("build.time_limit_s = true", "(line 1: build.time_limit_s = true)", "= 1800.0"),
        ("[plans.'a']\nrules = 3 # x", "(line 2: rules = 3 # x)", "docs/configuration.md"),
        ("[images]\nlayout = 'NCHW'", "(line 1: [images])", "channels"),
        ("[[suppress]]\nkind = 3", "(line 2: kind = 3)", 'kind = "text"'),
        ("a = 1\nmodel =", "model =", "method ="),
        ("a = 1\nb = c\n", "b = c", "method ="),
    ],
)
def test_a_mistake_has_its_line_and_a_right_one(tmp_path, text, line, hint):
    with fails(InputError, line, hint=hint):
        read_config(written(tmp_path, text))


def test_a_misspelt_key_has_a_suggestion(tmp_path):
    with fails(InputError, "modle", hint="'model'"):
        read_config(written(tmp_path, "modle = 'x'"))


def test_a_missing_file_is_an_error(tmp_path):
    with fails(InputError, "trtcal.toml", hint="trtcal init"):
        read_config(tmp_path / "trtcal.toml")


def test_plans_take_rules(tmp_path):
    text = '[plans.a]\nrules = [{ op = "Gemm", precision = "fp16" }]'
    plan = read_config(written(tmp_path, text)).plans["a"]
    assert plan.rules == ({"op": "Gemm", "precision": "fp16"},)
    with fails(InputError, "plans.a.rules"):
        read_config(written(tmp_path, "[plans.a]\nrules = 3"))


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ('targets = ["cpu"]', "fp32"),
        ('targets = ["cpu", "l4"]', "fp16"),
        ('targets = ["l4"]\nrest = "fp32"', "fp32"),
        ('targets = ["cpu"]\nrest = "fp16"', "fp16"),
    ],
)
def test_what_is_not_int8_is_fp16_where_a_target_is_a_gpu(tmp_path, text, rest):
    build = read_config(written(tmp_path, f"[build]\n{text}")).build
    assert build.rest_for(build.run_targets) == rest


def test_tags_and_what_serves_a_model_are_read(tmp_path):
    text = (
        '[cost]\ninferences_per_month = 4e8\ninstance = "g2-standard-4"\nprices = "p.toml"\n'
        '[cost.tags]\nteam = "vision"\n"cost center" = "42 \u00fc"\n'
    )
    cost = read_config(written(tmp_path, text)).cost
    assert cost.tags == {"team": "vision", "cost center": "42 \u00fc"}
    assert (cost.inferences_per_month, cost.prices) == (4e8, tmp_path / "p.toml")
    kept = cost.to_document()
    assert "prices" not in kept
    assert CostConfig.from_document({"cost": kept}) == replace(cost, prices=None)
    assert read_config(written(tmp_path, "[cost]\nprices = 'p.toml'")).cost.to_document() == {}


@each(
    "pair",
    [
        *(("", "x"), ("team", ""), (" team", "x"), ("team", "x "), ("a=b", "x")),
        *(("k" * 129, "x"), ("k", "v" * 257), ("te\u202eam", "x"), ("team", "a\u200bb")),
        *(("team", "a\x1b[31m"), ("team", "a\nb"), ("team", "\ud800"), ("cafe\u0301", "x")),
        *(("team", 3), ("team", None), ("team", {"a": "b"}), ("team", ["a"])),
    ],
)
def test_a_tag_in_which_something_is_hidden_is_refused(pair):
    with pytest.raises(InputError) as refused:
        read_tags(dict([pair]))
    assert len(refused.value.message) < 400


@each("value", [None, 3, "team=x", ["team"], {f"k{n}": "v" for n in range(51)}])
def test_what_is_no_table_of_tags_is_refused(value):
    with fails(InputError, hint="docs/configuration.md"):
        read_tags(value)


@given(st.dictionaries(st.text(), st.text(), max_size=3))
def test_tags_are_taken_as_they_are_or_refused(table):
    taken = None
    with contextlib.suppress(InputError):
        taken = read_tags(table)
    assert taken in (None, table)


@each("cost", [3, {"tags": 3}, {"tags": {"a": 1}}, {"pricing": "free"}, {"instance": 4}, {"x": 1}])
def test_what_no_run_would_record_of_costs_is_an_input_error(cost):
    with fails(InputError, "cost"):
        CostConfig.from_document({"cost": cost})
