"""SKILL.md: its head is an agent skill's, and the fields that it names are in what commands print."""

import re

import yaml

from tests.docs.pages import ROOT
from tests.docs.reference.commands import leaves
from tests.docs.reference.schemas import read_schemas
from tests.fixtures.tables import each
from tests.release.surface import resolved

TEXT = (ROOT / "SKILL.md").read_text()
FORMS = {
    "run": "report",
    "diagnose": "diagnosis",
    "ranges show": "calibration",
    "history diff": "history diff",
}
ROWS = re.findall(r"^\| (?:`([a-z ]+) --json`)? *\| (.+?) \|", TEXT, re.MULTILINE)


def named_fields():
    """Yield the form and the path of each field in the table of fields."""
    form = ""
    for command, cell in ROWS:
        form = FORMS.get(command, command) or form
        prefix = ""
        for path in re.findall(r"`([\w.\[\]]+)`", cell):
            path = f"{prefix}{path}" if path.startswith(".") else path
            prefix = path.rpartition(".")[0]
            yield form, path


FIELDS = [(form, path) for form, path in named_fields() if form]


def test_the_head_is_that_of_an_agent_skill():
    _, head, body = TEXT.split("---\n", 2)
    facts = yaml.safe_load(head)
    assert set(facts) == {"name", "description"}
    assert re.fullmatch(r"[a-z0-9-]{1,64}", facts["name"])
    assert 100 < len(facts["description"]) <= 1024
    assert len(body.splitlines()) < 200


@each("form, path", FIELDS)
def test_the_fields_that_it_names_exist(form, path):
    whole = read_schemas()[form]
    schema = whole
    for name in path.replace("[]", "").split("."):
        schema = resolved(schema, whole)
        schema = resolved(schema.get("items", schema), whole)
        assert name in alternatives(schema, whole), (form, path)
        schema = alternatives(schema, whole)[name]


def alternatives(schema, whole):
    """Return the fields of an object, and of each form that it may have."""
    found = dict(schema.get("properties", {}))
    for one in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        found |= resolved(one, whole).get("properties", {})
    return found


def test_it_names_the_fields_of_a_verdict_fallbacks_and_ranges():
    assert {("report", "measured.verdict.word"), ("report", "builds[].outcomes[]")} <= {*FIELDS}
    assert ("calibration", "ranges") in FIELDS


def test_every_command_in_its_tables_exists():
    known = {context.command_path for context in leaves()}
    groups = {" ".join(one.split()[:2]) for one in known}
    named = re.findall(r"`(trtcal [a-z-]+(?: (?:check|diff|verify|show))?)", TEXT)
    assert named
    assert [one for one in named if one not in known | groups] == []
