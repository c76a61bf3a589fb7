"""What changed in documents from one schema version to the next, and how an older one is converted.

A key or word that changes gets a row in `CHANGES`, with the schema version that has it: `trtcal
upgrade` and the hint of an error about an old document follow from the table.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

VERDICTS = {"word": {"ROLL BACK": "DO NOT SHIP"}}


@dataclass(frozen=True)
class Change:
    """What a schema version changed in documents of one kind.

    `keys` are old names of keys and the new ones; `words` the values of a key that have another word
    now. A key is meant wherever it stands, "samples.selection" only directly inside of `samples`.
    """

    kind: str
    version: int
    keys: Mapping[str, str] = field(default_factory=dict)
    words: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def convert(self, value: Any, parent: str = "") -> Any:
        """Return a JSON value with the new keys and words; `parent` is the key that it stands under."""
        if isinstance(value, list):
            return [self.convert(item, parent) for item in value]
        if not isinstance(value, dict):
            return value
        converted = {}
        for key, item in value.items():
            path = f"{parent}.{key}"
            words = self.words.get(path) or self.words.get(key, {})
            name = self.keys.get(path) or self.keys.get(key, key)
            is_word = isinstance(item, str)
            converted[name] = words.get(item, item) if is_word else self.convert(item, key)
        return converted


CHANGES = (
    Change("ab", 3, words=VERDICTS),
    Change("search", 2, words=VERDICTS),
    Change("report", 4, words=VERDICTS),  # of the A/B tests in it, which are outside its digest
    Change("history", 3, words={"verdict": VERDICTS["word"]}),  # `keys` are names of figures
)
CONFIG_KEYS: Mapping[str, str] = {"build.tune_placement": ""}
"""Keys of `trtcal.toml` that were renamed, with the tables around them: "build.old" -> "build.new".

The line of a key without a new name becomes a comment.
"""
COMMANDS = {
    "bisect": "trace bisect",
    "calibration": "ranges",
    "checkpoint": "trace",
    "cost": "history cost",
    "drift": "bundle drift",
    "explain": "log --explain",
    "fusion": "layers fusions",
    "store trace": "store origin",
}
"""Commands that have another name now."""
OLD_COMMAND = re.compile(rf"\btrtcal ({'|'.join(COMMANDS)})\b")


def convert_text(text: str) -> str:
    """Return a text in which commands have the names that they have now.

    >>> convert_text("see `trtcal explain tactic`")
    'see `trtcal log --explain tactic`'
    """
    return OLD_COMMAND.sub(lambda command: f"trtcal {COMMANDS[command[1]]}", text)


def convert(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document as this version of trtcal writes it, but for its digest."""
    kind, version = document.get("kind"), document.get("schema_version")
    converted = replace_texts(dict(document), convert_text)
    for change in changes_of(kind, version):
        converted = {**change.convert(converted), "schema_version": change.version}
    return dict(converted)


def is_convertible(kind: str, version: object) -> bool:
    """Tell whether `convert` raises the version of such a document."""
    return any(change.version != version for change in changes_of(kind, version))


def changes_of(kind: object, version: object = 0) -> list[Change]:
    """Return the changes of a kind that a document of this version may lack, in their order."""
    first = version if isinstance(version, int) else math.inf
    return [change for change in CHANGES if change.kind == kind and change.version >= first]


def replace_texts(value: Any, replaced: Callable[[str], str]) -> Any:
    """Return a JSON value with every text in it replaced, keys too: some are digests."""
    if isinstance(value, str):
        return replaced(value)
    if isinstance(value, list):
        return [replace_texts(item, replaced) for item in value]
    if isinstance(value, dict):
        return {replaced(key): replace_texts(item, replaced) for key, item in value.items()}
    return value


def convert_config(text: str, renamed: Mapping[str, str] = CONFIG_KEYS) -> str:
    r"""Return the text of a `trtcal.toml` with the keys of today; the rest of it, comments too, stays.

    >>> print(convert_config("[build]\nlimit = 3  # hours", {"build.limit": "build.limit_h"}))
    [build]
    limit_h = 3  # hours
    """
    lines, table = [], ""
    for line in convert_text(text).split("\n"):
        if header := re.match(r"\s*\[+\s*([\w.-]+)\s*\]", line):
            table = f"{header[1]}."
        if (key := re.match(r"\s*([\w.-]+)\s*=", line)) and table + key[1] in renamed:
            name = renamed[table + key[1]].removeprefix(table)
            line = line[: key.start(1)] + (name or f"# removed: {key[1]}") + line[key.end(1) :]
        lines.append(line)
    return "\n".join(lines)
