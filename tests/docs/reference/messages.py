"""The messages of build logs and the findings, from the rules that know them."""

from collections.abc import Iterator

from tests.docs.reference.markdown import contents, prose, table
from trtcal.evidence.explanations import CATEGORY, FINDING, MESSAGE, Explanation, explanations

INDEX = """\
# Messages of build logs

The messages that `trtcal log` knows, by their subject. `trtcal log` prints their names, and
`trtcal log --explain NAME` prints the same text. The lines are examples, of the oldest TensorRT first.
What `trtcal diagnose` concludes from them is in [Findings](findings.md).
"""
FINDINGS = """\
# Findings

What `trtcal diagnose` finds wrong with a build. It prints the name of each kind, and `[[suppress]]` in
[`trtcal.toml`](../configuration.md) takes it.
"""


def pages() -> Iterator[tuple[str, str]]:
    """Yield a page for each category of messages, their list, and the page of findings."""
    known = tuple(explanations())
    categories = [one for one in known if one.about == CATEGORY]
    rows = [(f"[{prose(one.name)}]({one.name}.md)", prose(one.meaning)) for one in categories]
    listed = table(["category", "about"], rows)
    names = table(["message", "category"], [_row(one) for one in known if one.about == MESSAGE])
    yield (
        "messages/index.md",
        f"{INDEX}\n{listed}\n## All messages\n\n{names}\n{contents(one.name for one in categories)}",
    )
    for category in categories:
        inside = [one for one in known if one.about == MESSAGE and one.category == category.name]
        text = f"# {prose(category.name)}\n\n{_about(category)}\n\n"
        yield f"messages/{category.name}.md", text + "\n".join(map(_section, inside))
    findings = [_section(one) for one in known if one.about == FINDING]
    yield "messages/findings.md", FINDINGS + "\n" + "\n".join(findings)


def _row(one: Explanation) -> tuple[str, str]:
    return f"[{prose(one.name)}]({one.category}.md#{one.name})", prose(one.category or "")


def _section(one: Explanation) -> str:
    parts = [f"## {prose(one.name)}"]
    if one.about == MESSAGE:
        parts.append(f"*{prose(one.title)}*")
    parts.append(_about(one))
    if one.needs:
        parts.append(f"**Occurs with.** {prose(one.needs)}")
    if one.threads:
        parts.append(f"**Reports.** {', '.join(map(_thread, one.threads))}")
    if one.examples:
        parts.append("\n".join(["```{code-block} text\n:class: wrap\n", *one.examples, "```"]))
    return "\n\n".join(parts) + "\n"


def _thread(thread: str) -> str:
    """Return a link to a report; GitHub leads from an issue's number to a pull request's."""
    return f"[{prose(thread)}](https://github.com/{thread.replace('#', '/issues/')})"


def _about(one: Explanation) -> str:
    parts = [prose(one.meaning)]
    parts += [f"**Why it matters.** {prose(one.why)}"] if one.why else []
    parts += [f"**What to do.** {prose(one.fix)}"] if one.fix else []
    return "\n\n".join(parts)
