"""The code blocks of our Markdown pages, and what the comments before them ask for.

A comment on the line before a block says more about it: `<!-- file: NAME -->`, `<!-- output -->`,
`<!-- needs: MODULE -->`, `<!-- skip: REASON -->`. `<!-- run: COMMAND -->` is a command of its own.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parent.parent.parent
MADE = {ROOT / "docs" / "_build", ROOT / "docs" / "reference"}
"""What `make docs` writes."""
PAGES = sorted(
    page
    for pattern in ("*.md", "docs/**/*.md", "samples/**/*.md")
    for page in ROOT.glob(pattern)
    if not MADE & set(page.parents)
)
COMMENT = re.compile(r"<!--\s*(file|output|needs|skip|run)\b:?\s*(.*?)\s*-->", re.DOTALL)


@dataclass
class Block:
    """A fenced block: its language, text and first line in the page, and the comments before it.

    A hidden command is a block in the language `run`, an indented block one in "".
    """

    language: str
    text: str
    line: int
    comments: dict[str, str] = field(default_factory=dict)


def name_of(page: Path) -> str:
    """Return a page's path in the repository."""
    return str(page.relative_to(ROOT))


def read_blocks(page: Path) -> list[Block]:
    """Return the blocks of a page in order; `AssertionError` where a comment has no block."""
    found: list[Block] = []
    comments: dict[str, str] = {}
    for token in MarkdownIt("commonmark").enable("table").parse(page.read_text()):
        line = token.map[0] + 1 if token.map else 0
        if token.type == "html_block":
            for key, value in COMMENT.findall(token.content):
                if key == "run":
                    found.append(Block("run", value, line, comments))
                    comments = {}
                else:
                    comments[key] = value
        elif token.type in ("fence", "code_block"):
            found.append(Block(token.info.strip(), token.content, line, comments))
            comments = {}
        elif comments and token.type != "list_item_close":
            raise AssertionError(f"{name_of(page)}:{line}: no block follows the comment {comments}")
    return found


@dataclass
class Command:
    """A command line of a console block, the exit status that it ends with, and its output."""

    text: str
    status: int = 0
    output: list[str] = field(default_factory=list)


STATUS = re.compile(r"\s+#\s*exit status (\d+)\s*$")


def commands_of(block: Block) -> list[Command]:
    """Return the commands of a console block; `AssertionError` if it does not begin with one."""
    commands: list[Command] = []
    continues = False
    for line in block.text.splitlines():
        if continues:
            commands[-1].text += "\n" + line
        elif line.startswith("$ "):
            commands.append(Command(line[2:]))
        else:
            assert commands, f"line {block.line}: a console block begins with `$ `"
            commands[-1].output.append(line)
            continue
        continues = line.endswith("\\")
    for command in commands:
        if found := STATUS.search(command.text):
            command.text, command.status = command.text[: found.start()], int(found[1])
    return commands


def differs(expected: str, printed: str) -> bool:
    """Whether an output is another one: `...` stands for anything, alone on a line for any lines."""
    wanted = [line.rstrip() for line in expected.strip("\n").splitlines()]
    lines = [line.rstrip() for line in printed.strip("\n").splitlines()]
    patterns = [
        r"(?:.*\n)*?" if line.strip() == "..." else _pattern(line) + r"\n" for line in wanted
    ]
    text = "".join(f"{line}\n" for line in lines)
    return re.fullmatch("".join(patterns), text) is None


def _pattern(line: str) -> str:
    return ".*".join(re.escape(part) for part in line.split("..."))
