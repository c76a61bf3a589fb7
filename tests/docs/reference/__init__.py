"""The pages of docs/reference, made from the code: what a page says stands once, where it holds.

Each module makes the pages of one kind: `pages()` yields their names in docs/reference and their text.
"""

from collections.abc import Iterator
from pathlib import Path

from tests.docs.reference import (
    api,
    commands,
    configuration,
    documents,
    errors,
    messages,
    metrics,
    outputs,
    repository,
)

PARTS = (commands, configuration, messages, metrics, outputs, documents, api, errors, repository)

INDEX = """\
# Reference

These pages are made from the code of this version. The other pages of the menu explain by topic.

| page | what it has |
|---|---|
| [Commands](commands/index.md) | every command: its options, their defaults, an example |
| [`trtcal.toml`](configuration.md) | every key: what it takes, its default, what it means |
| [Messages of build logs](messages/index.md) | every message that trtcal knows: meaning and remedy |
| [Findings](messages/findings.md) | every kind of finding: meaning and remedy |
| [Metrics](metrics.md) | every figure that a limit can be about |
| [Outputs](outputs.md) | the task, limit and evidence of outputs as public exports have them |
| [JSON documents](documents.md) | what commands print and write for other programs, with schemas |
| [Python](python/index.md) | every name of `import trtcal` |
| [Exit statuses](exit-statuses.md) | what a program's end says |
"""


def pages() -> Iterator[tuple[str, str]]:
    """Yield the name and text of every page of the reference."""
    yield "index.md", INDEX
    for part in PARTS:
        yield from part.pages()


def write_reference(folder: Path) -> None:
    """Write the pages into a folder, and remove what is no page any more; an equal one stays."""
    wanted = {folder / name: text for name, text in pages()}
    for path, text in wanted.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
    for path in folder.rglob("*.md"):
        if path not in wanted:
            path.unlink()
