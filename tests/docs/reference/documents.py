from __future__ import annotations


def pages():
    yield "documents.md", "# JSON documents\n\nDocuments.\n"
