"""Every report is what the schema says, and the schema takes nothing else."""

import json

import pytest
from jsonschema import Draft202012Validator

from tests.conftest import SAMPLES
from tests.fixtures.schema import schema_errors
from tests.fixtures.tables import each
from tests.reporting.hostile import NASTY, write_hostile_run
from tests.reporting.large import write_large_run
from tests.reporting.samples import accuracy, build, comparison, row, write_build, write_run
from trtcal.cli.main import run_command
from trtcal.documents import read_json
from trtcal.reporting.document import assemble, read_schema
from trtcal.runs.diff import against_last
from trtcal.runs.history import History
from trtcal.wings.fleet.prices import named_price, with_costs

REPORTS = SAMPLES.parent / "reports"
GALLERY = sorted(REPORTS.glob("digits*.json"))
DIGITS = SAMPLES / "digits"


def at(document, *places):
    for place in places:
        document = next(iter(document.values())) if place == "*" else document[place]
    return document


def fields(part, place=""):
    """Yield every field of a schema, and where it stands."""
    if isinstance(part, dict):
        for name, field in part.get("properties", {}).items():
            yield f"{place}/{name}", field
        for name, inner in part.items():
            yield from fields(inner, f"{place}/{name}")
    elif isinstance(part, list):
        for number, inner in enumerate(part):
            yield from fields(inner, f"{place}/{number}")


def test_it_is_a_schema_and_tells_of_every_field_in_a_sentence():
    schema = read_schema()
    Draft202012Validator.check_schema(schema)
    found = dict(fields(schema))
    assert len(found) > 200
    for place, field in found.items():
        assert field.get("description", "").endswith("."), place


@pytest.mark.parametrize("path", GALLERY, ids=lambda path: path.stem)
def test_the_gallery_is_what_it_says(path):
    assert schema_errors(read_json(path)) == []


def test_hostile_names_are_too(tmp_path):
    assert schema_errors(assemble(write_hostile_run(tmp_path, NASTY))) == []


def test_so_is_a_large_run_with_costs_and_the_run_before(tmp_path):
    document = assemble(write_large_run(tmp_path / "run", 40))
    history = History(tmp_path / "history.sqlite")
    history.record({**document, "measured": {**document["measured"], "made_at": "2026-01-01"}})
    for price in (None, named_price(0.85)):
        priced = with_costs(document, price=price)
        priced["measured"]["against"] = against_last(history, priced)
        assert priced["measured"]["against"]
        assert schema_errors(priced) == []


@pytest.mark.parametrize("failed", [True, False])
def test_so_are_builds_of_which_nothing_was_compared_and_failed_ones(tmp_path, failed):
    write_build(tmp_path / "one", build("a", {"conv": "int8"}))
    if failed:
        (tmp_path / "one" / "build.json").unlink()
    document = assemble(tmp_path)
    assert document["comparison"] is None
    assert bool(document["measured"].get("failed_logs")) == failed
    assert schema_errors(document) == []


def test_so_is_one_with_an_ab_test_by_slices(tmp_path):
    folder = write_run(tmp_path, comparison(row("a", accuracy(5, 1))))
    slices = tmp_path / "slices.csv"
    slices.write_text("half\n" + "left\n" * 250 + "right\n" * 250)
    model = DIGITS / "digits.onnx"
    command = ["ab", model, model, "--data", DIGITS / "test.npz", "--slices", slices]
    limits = ["--limit", "speedup >= 0.1", "--sequential", "-o", folder / "ab.json"]
    assert run_command([str(one) for one in [*command, *limits]]) in (0, 1)
    document = assemble(folder)
    assert document["tests"]
    assert schema_errors(document) == []


MISSING = [
    ("digest",),
    ("measured", "verdict"),
    ("comparison", "rows", 1, "accuracy", "sqnr_db"),
    ("builds", 1, "layers", 0, "estimated_ms"),
    ("tensors", 0, "ranges", 0, "amax"),
    ("measured", "builds", "*", "log"),
    ("measured", "costs", "note"),
    ("measured", "against", "figures", 0, "better"),
]
WRONG = [
    (("schema_version",), 1),
    (("digest",), "sha256:short"),
    (("builds",), None),
    (("comparison", "samples"), "500"),
    (("comparison", "rows", 1, "accuracy", "cosine"), "0.99"),
    (("comparison", "rows", 1, "accuracy", "top1_drop_interval"), [1.0]),
    (("builds", 1, "outcomes", 0, "got"), None),
    (("tensors", 0, "bars", 0), 0.5),
    (("measured", "verdict", "word"), "PERHAPS"),
    (("measured", "judgements", "int8-mse"), "good"),
    (("measured", "builds", "*", "engine_bytes"), -1),
    (("measured", "folder"), 7),
    (("measured", "news"), "a field that nobody knows"),
]


@each("place", MISSING)
def test_a_missing_field_is_reported(place):
    document = read_json(GALLERY[0])
    del at(document, *place[:-1])[place[-1]]
    assert schema_errors(document)


@each("place, value", WRONG)
def test_a_field_of_another_type_is_reported(place, value):
    document = read_json(GALLERY[0])
    at(document, *place[:-1])[place[-1]] = value
    assert schema_errors(document)


def test_the_command_prints_it(capsysbinary):
    assert run_command(["report", "--schema"]) == 0
    assert json.loads(capsysbinary.readouterr().out) == read_schema()
