"""in-toto Statements: what was made (subjects), of what (materials), each by its SHA-256."""

from __future__ import annotations

from collections.abc import Mapping

from trtcal.documents import Document

STATEMENT = "https://in-toto.io/Statement/v1"
RUN = "urn:trtcal:run:v1"
ALGORITHM = "sha256:"


def resource(name: str, digest: str) -> Document:
    """Return an in-toto ResourceDescriptor of a name and a digest `sha256:<hex>`.

    >>> resource("model.onnx", "sha256:" + 64 * "0")["name"]
    'model.onnx'
    """
    if not digest.startswith(ALGORITHM):
        raise ValueError(f"{digest!r} is not a SHA-256 digest")
    return {"name": name, "digest": {"sha256": digest.removeprefix(ALGORITHM)}}


def statement(
    subjects: Mapping[str, str], materials: Mapping[str, str], kind: str, predicate: Document
) -> Document:
    """Return a Statement v1 about `subjects`; its predicate names `materials`, both name to digest.

    Source: the in-toto Attestation Framework, spec/v1/statement.md and resource_descriptor.md.
    """
    return {
        "_type": STATEMENT,
        "subject": [resource(*pair) for pair in sorted(subjects.items())],
        "predicateType": kind,
        "predicate": {
            **predicate,
            "materials": [resource(*pair) for pair in sorted(materials.items())],
        },
    }
