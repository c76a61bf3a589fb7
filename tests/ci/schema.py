"""What SARIF 2.1.0 and code scanning ask of a file, as a JSON Schema of the parts that we write."""

from typing import Any

import jsonschema

TEXT = {
    "type": "object",
    "required": ["text"],
    "properties": {"text": {"type": "string", "minLength": 1}},
}


def _object(required: list[str], **properties: Any) -> dict[str, Any]:
    parts = {"type": "object", "required": required, "additionalProperties": False}
    return {**parts, "properties": properties}


def _list(items: dict[str, Any], least: int = 0) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": least}


NAME = {"type": "string", "minLength": 1}
RULE = _object(
    ["id"], id=NAME, shortDescription=TEXT, help=TEXT, helpUri={"type": "string", "format": "uri"}
)
FILE = _object(
    ["artifactLocation", "region"],
    artifactLocation=_object(["uri"], uri={"type": "string", "format": "uri-reference"}),
    region=_object(["startLine"], startLine={"type": "integer", "minimum": 1}),
)
PLACE = _object(
    ["physicalLocation", "logicalLocations"],
    physicalLocation=FILE,
    logicalLocations=_list(_object(["name"], name=NAME), 1),
)
RESULT = _object(
    ["ruleId", "level", "message", "locations", "partialFingerprints"],
    ruleId=NAME,
    level={"enum": ["none", "note", "warning", "error"]},
    message=TEXT,
    locations=_list(PLACE, 1),
    partialFingerprints=_object(["primaryLocationLineHash"], primaryLocationLineHash=NAME),
)
DRIVER = _object(["name", "version", "rules"], name=NAME, version=NAME, rules=_list(RULE))
RUN = _object(["tool", "results"], tool=_object(["driver"], driver=DRIVER), results=_list(RESULT))
SCHEMA = _object(
    ["$schema", "version", "runs"],
    **{"$schema": NAME, "version": {"const": "2.1.0"}, "runs": _list(RUN, 1)},
)


def check_sarif(document: Any, model: str) -> None:
    """Check a file by the schema, that its rules are all that it has, and that all is at one model."""
    jsonschema.Draft7Validator(SCHEMA, format_checker=jsonschema.FormatChecker()).validate(document)
    (run,) = document["runs"]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert sorted({result["ruleId"] for result in run["results"]}) == rules
    places = [result["locations"][0]["physicalLocation"] for result in run["results"]]
    assert {place["artifactLocation"]["uri"] for place in places} <= {model}
