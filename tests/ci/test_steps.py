"""The script of the action: what it writes into a comment, and whose comment it changes."""

import html
import importlib.util
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from tests.ci.schema import check_sarif
from tests.ci.server import PAGE, serving
from tests.docs.pages import ROOT
from tests.fixtures.examples import examples
from tests.fixtures.tables import each
from tests.reporting.hostile import NASTY, write_hostile_run
from trtcal.reporting.document import assemble

PARSER = MarkdownIt("commonmark").enable("table")


def script(name):
    """Return a script of ci/ as a module."""
    spec = importlib.util.spec_from_file_location(f"ci_{name}", ROOT / "ci" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


steps, sarif = script("steps"), script("sarif")
HOSTILE = [
    *NASTY,
    "@everyone",
    "a|b",
    "`x` ```\n```\n# Heading",
    "${{ github.token }} $(touch x)",
    "\n::error::x\n::set-output name=a::b",
    "--> <!-- trtcal int8 -->",
    "/close\n/merge",
]


@pytest.fixture
def state(tmp_path, monkeypatch):
    """The folder of the action after a run that ended with status 2."""
    for name, value in {"NAME": "int8", "CONFIG": str(tmp_path / "trtcal.toml")}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("REDACT", raising=False)
    (tmp_path / "baseline").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run.status").write_text("2\n")
    (tmp_path / "run.log").write_text(
        "note: x\nerror: trtcal.toml: unknown key\nhint: known: model\n"
    )
    return tmp_path


def code_of(text):
    """Return the blocks of code of a page, and what else is in it as HTML."""
    page = PARSER.render(text)
    blocks = re.findall(r"<pre><code>(.*?)</code></pre>", page, re.DOTALL)
    return [html.unescape(block) for block in blocks], re.sub(
        r"<pre><code>.*?</code></pre>", "", page, flags=re.DOTALL
    )


@each("text", HOSTILE)
def test_a_hostile_error_is_code_and_nothing_else(state, text):
    plain = code_of(steps.comment_of(state))[1]
    (state / "run.log").write_bytes(f"error: {text}\n".encode("utf-8", "replace"))
    blocks, rest = code_of(steps.comment_of(state))
    assert rest == plain
    assert len(blocks) == 1


@each("text", HOSTILE)
def test_a_hostile_configuration_is_code_and_nothing_else(state, text):
    (state / "baseline" / "config.toml").write_text("a = 1\n")
    (state / "trtcal.toml").write_text("a = 2\n")
    plain = code_of(steps.comment_of(state))[1]
    (state / "trtcal.toml").write_bytes(f"a = '{text}'\n".encode("utf-8", "replace"))
    assert code_of(steps.comment_of(state))[1] == plain


@examples(40)
@given(
    st.text(st.sampled_from("a \t`|<>*_#[](){}$@!&-\n\r\x0b\x0c\x85\u2028\u202e\x00/:"), min_size=1)
)
def test_no_text_ends_its_block_of_code(text):
    page = PARSER.parse("\n".join(["before", "", *steps.plain(f"a{text}"), "", "after"]))
    kinds = [token.type for token in page]
    assert kinds.count("code_block") == 1
    assert kinds.count("paragraph_open") == 2


def test_the_name_of_a_check_cannot_end_the_mark():
    assert steps.mark_of("a--b") == "<!-- trtcal a-b -->"


@each(
    "words, statuses, good",
    [
        (["SHIP"], {"run": 0}, True),
        (["SHIP WITH CARE", "SHIP"], {"run": 0, "history": 0, "ab": 0}, True),
        (["DO NOT SHIP"], {"run": 1}, False),
        (["INCONCLUSIVE"], {"run": 0}, False),
        (["SHIP", "INCONCLUSIVE"], {"run": 0, "ab": 0}, False),
        (["SHIP"], {"run": 0, "history": 1}, False),
        ([], {"run": 2}, False),
        (["SHIP"], {}, False),
    ],
)
def test_only_what_ships_by_every_check_is_good(words, statuses, good):
    tests = {str(place): {"verdict": {"word": word}} for place, word in enumerate(words[1:])}
    report = {"measured": {"verdict": {"word": words[0]}, "tests": tests}} if words else {}
    assert steps.is_good(report, statuses) is good


def test_a_verdict_of_another_word_is_no_output(state, capsys):
    report = {"measured": {"verdict": {"word": "SHIP\ngood=true"}, "tests": {}, "builds": {}}}
    (state / "run" / "report.json").write_text(json.dumps(report))
    steps.write(state)
    assert capsys.readouterr().out == "verdict=\nstatus=2\ngood=false\n"


def test_with_redact_nothing_of_logs_and_configuration_is_shown(state, monkeypatch):
    (state / "baseline" / "config.toml").write_text("a = 'secret'\n")
    (state / "trtcal.toml").write_text("a = 2\n")
    (state / "run.log").write_text("error: secret\n")
    assert "secret" in steps.comment_of(state)
    monkeypatch.setenv("REDACT", "true")
    assert "secret" not in steps.comment_of(state)


@pytest.fixture
def posting(state, monkeypatch):
    """A pull request on a server, to which the comment goes."""
    with serving() as forge:
        own = {"GITHUB_API_URL": forge.url, "GITHUB_REPOSITORY": "a/b", "TOKEN": "t", "NUMBER": "7"}
        for name, value in own.items():
            monkeypatch.setenv(name, value)
        (state / "comment.md").write_text("<!-- trtcal int8 -->\ntext\n")
        yield forge


def test_the_comment_is_looked_for_on_all_pages(state, posting):
    for number in range(2 * PAGE + 3):
        posting.add(f"{number}", login="somebody", kind="User")
    steps.post(state)
    steps.post(state)
    assert [request.split()[0] for request in posting.written()] == ["POST", "PATCH"]


def test_a_token_of_a_person_changes_the_comment_of_that_person(state, posting):
    posting.login = "me"
    for login, kind in (("github-actions[bot]", "Bot"), ("other", "User"), ("me", "User")):
        posting.add("<!-- trtcal int8 -->\nold", login, kind)
    steps.post(state)
    assert [comment["body"].splitlines()[1] for comment in posting.comments] == [
        "old",
        "old",
        "text",
    ]


def test_another_check_has_another_comment(state, posting):
    posting.add("<!-- trtcal other -->\nold")
    steps.post(state)
    assert [comment["body"].splitlines()[1] for comment in posting.comments] == ["old", "text"]


@pytest.mark.parametrize("status", [401, 403, 404, 422, 500])
def test_a_refusal_is_a_warning_without_the_words_of_the_server(state, posting, capsys, status):
    posting.refuses = status
    steps.post(state)
    out = capsys.readouterr().out
    assert out.startswith(f"::warning title=trtcal::no comment: GitHub answered {status}")
    assert "Resource" not in out


def test_no_server_is_a_warning(state, posting, monkeypatch, capsys):
    monkeypatch.setenv("GITHUB_API_URL", "http://127.0.0.1:9")
    steps.post(state)
    assert capsys.readouterr().out.startswith("::warning title=trtcal::no comment: ")


def test_hostile_findings_are_sarif_without_links(tmp_path):
    folder = write_hostile_run(tmp_path, [*NASTY, "[x](javascript:alert(1))"])
    document = sarif.to_sarif(assemble(folder), "models/a b%2F|`x`.onnx")
    assert document["runs"][0]["results"]
    check_sarif(document, "models/a%20b%252F%7C%60x%60.onnx")
    texts = [result["message"]["text"] for result in document["runs"][0]["results"]]
    assert not any("](" in text or not text.isprintable() for text in texts)
    json.dumps(document).encode("ascii")


def test_the_history_and_the_model_are_those_of_the_configuration(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    default, config = tmp_path / "data" / "trtcal" / "history.sqlite", tmp_path / "trtcal.toml"
    assert steps.history_of(tmp_path / "net.onnx") == default
    assert steps.model_of(tmp_path / "net.onnx") == tmp_path / "net.onnx"
    config.write_text('model = "net.onnx"\n')
    assert steps.history_of(config) == default
    config.write_text('model = "net.onnx"\nhistory = "kept/runs.sqlite"\n')
    assert steps.history_of(config) == tmp_path / "kept" / "runs.sqlite"
    assert steps.model_of(config) == tmp_path / "net.onnx"
