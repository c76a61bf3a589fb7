"""Seals a page: a digest of each section and of the rest, so that a change is found and placed.

It guards against accidents and careless edits, not against somebody who seals the page anew.
"""

from __future__ import annotations

import re

from trtcal.errors import InputError
from trtcal.storage import digest_bytes

SECTION = re.compile(rb'<section id="([\w-]+)".*?</section>', re.DOTALL)
SEAL = re.compile(rb'<meta name="trtcal-seal" content="([^"]*)">\n')
END_OF_HEAD = b"</head>"
FRAME = "frame"


def seal_page(page: str) -> str:
    """Return a page with its seal at the end of its head."""
    raw = page.encode("utf-8", "surrogateescape")
    content = "; ".join(f"{part} {digest}" for part, digest in digests_of_parts(raw).items())
    seal = f'<meta name="trtcal-seal" content="{content}">\n'.encode()
    before, end, after = raw.partition(END_OF_HEAD)
    return (before + seal + end + after).decode("utf-8", "surrogateescape")


def changed_parts(raw: bytes, name: str) -> list[str]:
    """Return the parts of a sealed page that are not as they were; `InputError` without a seal.

    A part is a section's id, or `frame` for all around the sections.
    """
    seal = SEAL.search(raw)
    if seal is None:
        raise InputError(f"{name} has no seal of trtcal", "give a report that trtcal wrote")
    told = dict(
        entry.rpartition(" ")[::2] for entry in seal[1].decode("latin-1").split("; ") if entry
    )
    found = digests_of_parts(raw[: seal.start()] + raw[seal.end() :])
    return [part for part in {**told, **found} if told.get(part) != found.get(part)]


def digests_of_parts(raw: bytes) -> dict[str, str]:
    """Return the digest of each section by its id, and of the frame: the page without them."""
    sections = {match[1].decode("ascii", "replace"): match[0] for match in SECTION.finditer(raw)}
    parts = {FRAME: SECTION.sub(rb"<\1>", raw), **sections}
    return {part: digest_bytes(data) for part, data in parts.items()}
