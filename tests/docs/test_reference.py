"""Nothing that a user can meet is undocumented: options, keys, messages, findings, names of Python."""

import re
from dataclasses import fields

import click

from tests.docs.pages import ROOT
from tests.docs.reference import configuration, pages, write_reference
from tests.docs.reference.commands import leaves
from tests.docs.reference.repository import captioned, relinked
from tests.fixtures.tables import each
from trtcal import config
from trtcal.cli.main import commands
from trtcal.evidence.explanations import CATEGORY, MESSAGE, explanations

INDEX = (ROOT / "docs" / "index.md").read_text()
KNOWN = tuple(explanations())
SECTIONS = [one for name, one in vars(config).items() if name.endswith("Config")]
KEYS = [
    (kind.__name__, item) for kind in SECTIONS for item in fields(kind) if item.metadata
]  # fields that are not keys have no metadata

LEAVES = {context.command_path: context.command for context in leaves()}


@each("command", [*LEAVES.values()])
def test_every_option_has_a_help_and_every_command_an_example(command):
    options = [one for one in command.params if isinstance(one, click.Option)]
    assert [one.opts for one in options if not (one.help or "").strip()] == []
    assert (command.help or "").strip()
    assert "trtcal " in (command.epilog or "")


@each("section, item", KEYS)
def test_every_key_has_a_meaning_a_type_and_a_default(section, item):
    texts = configuration.TEXTS[section][item.name]
    assert texts["about"].endswith(".")
    if configuration.section_of(item) is None and item.name != "suppress":
        assert configuration.takes(item.metadata["read"])
        assert "unset" in texts or item.default != "" or configuration.is_required(item), (
            f"{section}.{item.name} does not say what holds where it is not given"
        )


@each("one", KNOWN)
def test_every_message_and_finding_has_a_meaning_and_a_remedy(one):
    assert one.meaning.endswith((".", "!", ")", "`"))
    assert one.fix or one.about == CATEGORY
    if one.about == MESSAGE:
        assert one.examples
        assert one.why or one.severity in ("info", "verbose"), "why is it bad?"


def test_the_pages_are_written_and_those_that_are_none_removed(tmp_path):
    (tmp_path / "old.md").write_text("# An old page\n")
    write_reference(tmp_path)
    names = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.md")}
    assert "old.md" not in names
    assert {f"commands/{name}.md" for name in commands()} <= names
    assert {f"messages/{one.name}.md" for one in KNOWN if one.about == CATEGORY} <= names
    before = (tmp_path / "index.md").stat().st_mtime_ns
    write_reference(tmp_path)
    assert (tmp_path / "index.md").stat().st_mtime_ns == before


def test_a_link_out_of_the_documents_leads_to_its_page_in_the_site():
    page = ROOT / "docs" / "threats.md"
    text = relinked("[a](../SECURITY.md#x) [b](data.md) [c](https://x.org/a.md)", page, page)
    assert text == ("[a](reference/repository/security.md#x) [b](data.md) [c](https://x.org/a.md)")


def test_a_block_that_is_a_file_has_its_name_as_caption():
    comments = "<!-- file: x/plan.json -->\n<!-- needs: torch -->\n"
    text = f"a\n\n{comments}```json\n{{}}\n```\n\n```json\n1\n```\n"
    shown = captioned(text)
    assert "```{code-block} json\n:caption: x/plan.json\n\n{}\n```" in shown
    assert shown.endswith("```json\n1\n```\n")


def test_every_page_of_the_reference_is_in_one_menu():
    menus = re.findall(r":caption: (\S+)\n:hidden:\n\n(.*?)```", INDEX, re.DOTALL)
    names = [name for name, _ in menus]
    assert len(names) == len({*names})
    listed = dict(menus)["Reference"]
    for name, _ in pages():
        if name.count("/") < 2 and not name.startswith(
            ("repository", "commands/", "messages/", "python/")
        ):
            assert f"reference/{name.removesuffix('.md')}" in listed, name
