"""What commands print with `--json` is what docs/schemas and the page of JSON documents say."""

from dataclasses import dataclass

from jsonschema import Draft202012Validator

from tests.docs.reference import documents
from tests.docs.reference.commands import leaves
from tests.docs.reference.printed import UNTRIED, Printed, record
from tests.docs.reference.schemas import file_of, read_schemas, schema_of, schemas
from tests.fixtures.slow import SLOW
from tests.fixtures.tables import each

FORMS = read_schemas()
WITH_JSON = {
    context.command_path.removeprefix("trtcal ")
    for context in leaves()
    if any("--json" in one.opts for one in context.command.params)
}


def faults(document, schema):
    found = Draft202012Validator(schema).iter_errors(document)
    return [f"{error.json_path}: {error.message[:200]}" for error in found]


@SLOW
def test_what_every_command_prints_is_what_its_schema_says(tmp_path):
    printed = list(record(tmp_path))
    wrong = {one.name: faults(one.document, FORMS[one.name]) for one in printed}
    assert {name: found for name, found in wrong.items() if found} == {}
    assert {one.command for one in printed} == WITH_JSON - {*UNTRIED}
    assert {one.name for one in printed} == {*FORMS}


def test_every_command_with_json_has_a_schema():
    described = {command for one in FORMS.values() for command in one["x-commands"]}
    assert described | {*UNTRIED} == WITH_JSON


@each("name", sorted(FORMS))
def test_schemas_are_valid_and_so_are_their_examples(name):
    Draft202012Validator.check_schema(FORMS[name])
    assert file_of(name).exists()
    for example in FORMS[name].get("examples", ()):
        assert faults(example, FORMS[name]) == []


def test_every_field_on_the_page_has_a_type_and_a_meaning():
    ((_, page),) = documents.pages()
    rows = [
        line.split(" | ")
        for line in page.splitlines()
        if line.startswith("| `") and line.count(" | ") > 2
    ]
    assert rows
    assert [row[0] for row in rows if not row[1].strip() or row[-1].strip() in ("", "|")] == []


@dataclass
class Thing:
    """A made-up result."""

    name: str
    latency_ms: float | None
    parts: tuple[str, ...] = ()


def test_a_field_that_may_be_null_or_a_number_has_both_types():
    schema = schema_of([{"name": "a", "latency_ms": None, "parts": []}], Thing)
    kinds = {name: one["type"] for name, one in schema["properties"].items()}
    assert kinds == {"name": "string", "latency_ms": ["null", "number"], "parts": "array"}
    assert faults({"name": "a", "latency_ms": 1.5, "parts": ["x"]}, schema) == []
    assert faults({"name": "a", "latency_ms": "1.5", "parts": []}, schema)
    assert faults({"name": "a", "parts": [1], "latency_ms": None}, schema)
    assert faults({"latency_ms": None, "parts": []}, schema)


def test_an_annotation_that_does_not_fit_what_is_printed_is_not_believed():
    assert schema_of([3], str)["type"] == "integer"
    assert schema_of([3, 3.5], float)["type"] == "number"


def test_what_is_null_in_every_sample_may_be_anything_in_another_one():
    schema = schema_of([{"needed": None, "size": 1}])
    assert faults({"needed": 200, "size": 1}, schema) == []
    assert faults({"needed": None, "size": "1"}, schema)


def test_names_of_tensors_are_keys_and_not_fields():
    schema = schema_of([{"stem/conv": 1.0, "head": 2.0}])
    assert schema == {"type": "object", "additionalProperties": {"type": "number"}}


def test_schemas_of_forms_have_the_commands_and_the_version():
    document = {"kind": "thing", "schema_version": 3, "name": "a"}
    (schema,) = schemas([Printed("make", "thing", document)]).values()
    assert (schema["title"], schema["x-commands"]) == ("thing", ["make"])
    assert faults(document, schema) == []
    assert faults({**document, "schema_version": 4}, schema)
