from __future__ import annotations


def pages():
    yield "configuration.md", "# trtcal.toml\n\nKeys.\n"
