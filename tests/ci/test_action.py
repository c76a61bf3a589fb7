"""The GitHub Action: its steps run on a real repository, with a good change and bad ones."""

import hashlib
import json
import re
import shutil
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from tests.ci import repository
from tests.ci.action import ACTION, STEPS, Job
from tests.ci.expressions import Expression, holds
from tests.ci.schema import check_sarif
from tests.ci.server import serving
from tests.docs.pages import ROOT
from tests.fixtures.engines import needs_rtx
from tests.fixtures.slow import SLOW
from tests.fixtures.tables import each

GUIDE = ROOT / "docs" / "guides" / "ci.md"
NUMBER = 7


class Project:
    """A repository on a forge, with the caches that its jobs have left."""

    def __init__(self, folder: Path, forge) -> None:
        self.folder, self.forge = folder, forge
        own = 'history = "kept/runs.sqlite"\n'  # which the baseline has to come to
        self.repository = repository.make_repository(folder / "repository", own)
        self.caches: dict[str, Path] = {}

    def job(self, name, change=None, event="pull_request", skipped=("install",), **inputs) -> Job:
        """Run the action on a change of main."""
        repository.git(self.repository, "checkout", "-q", "-B", name, "main")
        if change:
            change(self.repository)
            repository.commit(self.repository, name)
        payload = {"repository": {"default_branch": "main"}}
        if event == "pull_request":
            payload["pull_request"] = {"number": NUMBER}
        inputs = {"base-limits": "top1 >= -0.5\nengine_bytes <= +50%", **inputs}
        folder = self.folder / name
        job = Job(self.repository, folder, event, payload, inputs, self.caches, self.forge.url)
        job.status = job.run(skipped)
        repository.git(self.repository, "checkout", "-q", "main")
        return job

    def baseline(self) -> dict[str, str]:
        """Return the digests of the newest baseline."""
        newest = [*self.caches.values()][-1]
        files = sorted(newest.iterdir())
        return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """The project after a good push to main."""
    with serving() as forge:
        project = Project(tmp_path_factory.mktemp("action"), forge)
        project.first = project.job("first", event="push")
        yield project


def comment_of(project: Project) -> str:
    """Return the comment of the pull request, which has one."""
    (comment,) = project.forge.comments
    return comment["body"]


@SLOW
@needs_rtx
class TestOnARepository:
    """One job after the other on one project, as a runner has them."""

    def test_a_good_push_makes_the_baseline(self, project):
        job = project.first
        assert job.status == 0, job.printed
        assert (job.result("verdict"), job.result("status")) == ("SHIP WITH CARE", "0")
        assert [*project.baseline()] == ["config.toml", "history.sqlite", "int8-percentile.onnx"]
        assert project.forge.requests == []
        assert job.summary.read_text().startswith("<!-- trtcal int8 -->\n**trtcal, int8: passed**")
        names = {file.name for file in job.artifacts}
        assert {"comment.md", "findings.sarif", "report.html", "report.json", "build.log"} <= names
        check_sarif(json.loads(Path(job.result("sarif")).read_text()), "digits.onnx")

    def test_a_good_change_passes_and_its_comment_is_changed_in_place(self, project):
        before = project.baseline()
        project.forge.comments.clear()
        project.forge.add("<!-- trtcal int8 -->\nnot ours", login="somebody", kind="User")
        job = project.job("good", repository.change_calibration)
        assert job.status == 0, job.printed
        ours = project.forge.comments[1]["body"]
        assert "**trtcal, int8: passed**" in ours
        assert "(A: base branch, B: this change) | passed |" in ours
        assert re.search(r"Inputs that changed since then \(\d+\): .*calibration data", ours)
        assert "### A/B tests" in ours
        assert "The configuration changed" not in ours
        again = project.job("again", repository.change_calibration, ab="false")
        assert again.status == 0
        assert [request.split()[0] for request in project.forge.written()] == ["POST", "PATCH"]
        assert (
            "| `trtcal ab` (A: base branch, B: this change) | not run |"
            in project.forge.comments[1]["body"]
        )
        assert project.forge.comments[0]["body"].endswith("not ours")
        assert project.baseline() == before

    @pytest.mark.parametrize(
        ("change", "verdict", "failed", "words"),
        [
            (repository.spoil_data, "DO NOT SHIP", {"run", "ab"}, ('+methods = ["minmax"]',)),
            (repository.ruin_model, "SHIP WITH CARE", {"history", "ab"}, ("model", "top1")),
            (
                repository.lose_layers,
                "DO NOT SHIP",
                {"run", "history"},
                ("int8&#95;macs", "broken"),
            ),
        ],
        ids=["data", "model", "layers"],
    )
    def test_a_bad_change_fails_and_says_why(self, project, change, verdict, failed, words):
        before = project.baseline()
        project.forge.comments.clear()
        job = project.job(change.__name__, change)
        assert (job.status, job.result("verdict")) == (1, verdict), job.printed
        state = Path(job.outputs["prepare"]["state"])
        statuses = {file.stem: file.read_text().strip() for file in state.glob("*.status")}
        assert {name for name, status in statuses.items() if status != "0"} == failed
        text = comment_of(project)
        assert "**trtcal, int8: failed**" in text
        for word in words:
            assert word in text
        assert project.baseline() == before
        assert {"report.html", "findings.sarif"} <= {file.name for file in job.artifacts}
        check_sarif(json.loads(Path(job.result("sarif")).read_text()), "digits.onnx")

    def test_a_broken_configuration_has_a_comment_in_which_its_text_is_text(self, project):
        project.forge.comments.clear()
        job = project.job("broken", repository.break_config)
        assert (job.status, job.result("status"), job.result("verdict")) == (1, "2", "")
        assert (job.result("report"), job.result("sarif")) == ("", "")
        text = comment_of(project)
        assert "| `trtcal run` | **failed** with exit status 2 |" in text
        assert "    error: trtcal.toml" in text
        html = MarkdownIt("commonmark").enable("table").render(text)
        assert "<img" not in html
        assert "@everyone" in re.search(r"<pre><code>.*?</code></pre>", html, re.DOTALL)[0]
        assert not re.search(r"^::error::", job.printed["report"] + job.printed["comment"], re.M)

    def test_a_bad_push_keeps_the_good_baseline(self, project):
        before, keys = project.baseline(), [*project.caches]
        job = project.job("bad-push", repository.ruin_model, event="push")
        assert job.status == 1
        assert job.outcomes["baseline"] == "skipped"
        assert (project.baseline(), [*project.caches]) == (before, keys)

    def test_an_undecided_push_makes_no_baseline_even_where_it_may_pass(self, project):
        keys = [*project.caches]
        inputs = {"limits": "top1 >= -0.01", "fail-on-undecided": "false", "base-limits": ""}
        job = project.job("undecided", event="push", **inputs)
        assert (job.status, job.result("verdict")) == (0, "INCONCLUSIVE")
        assert [*project.caches] == keys

    def test_a_redacted_job_passes_and_names_no_folder(self, project):
        """The folder of the runner has the name of a customer."""
        project.forge.comments.clear()
        job = project.job("geheim-kunde", repository.change_calibration, redact="true")
        assert job.status == 0, job.printed
        text = comment_of(project)
        assert "**trtcal, int8: passed**" in text
        kept = {file.name: file.read_text() for file in job.artifacts if file.suffix != ".log"}
        assert "report.json" in kept
        assert [name for name in kept if "geheim-kunde" in kept[name]] == []
        assert "geheim-kunde" not in text

    def test_a_token_that_may_not_write_is_a_warning(self, project):
        project.forge.comments.clear()
        project.forge.refuses = 403
        try:
            job = project.job("fork", ab="false")
        finally:
            project.forge.refuses = 0
        assert job.status == 0
        assert project.forge.comments == []
        assert job.printed["comment"].startswith(
            "::warning title=trtcal::no comment: GitHub answered 403"
        )
        assert "Resource" not in job.printed["comment"]

    def test_a_model_runs_without_a_configuration(self, project):
        inputs = {"model": "digits.onnx", "data": "calibration.npz", "test": "test.npz"}
        project.forge.comments.clear()
        job = project.job("bare", target="cpu", **{"base-limits": "", **inputs})
        assert job.status == 0, job.printed
        assert "B: this change) | passed |" in comment_of(project)


@SLOW
def test_the_action_installs_its_own_checkout(tmp_path):
    """What pip installs goes into a folder of the test, without the packages that trtcal needs."""
    checkout, target = tmp_path / "checkout", tmp_path / "target"
    names = repository.git(
        ROOT, "ls-files", "trtcal", "calibrators", "*.toml", "*.md", "LICENSE"
    ).split()
    for name in names:
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, checkout / name)
    options = {"TARGET": str(target), "NO_DEPS": "1", "NO_INDEX": "1", "NO_BUILD_ISOLATION": "0"}
    own = {f"PIP_{name}": value for name, value in options.items()}
    environment = {**own, "GITHUB_ACTION_PATH": str(checkout)}
    job = Job(tmp_path, tmp_path / "job", "push", {}, {}, {}, environment=environment)
    job.run(
        tuple(step["id"] for step in STEPS if step.get("id") not in (None, "prepare", "install"))
    )
    assert job.outcomes["install"] == "success", job.printed["install"]
    assert (target / "trtcal" / "cli" / "main.py").is_file()


def test_no_expression_reaches_a_shell():
    assert [step["id"] for step in STEPS if "${{" in step.get("run", "")] == []


def test_other_actions_are_pinned_by_commit():
    lines = [line for line in (ROOT / "action.yml").read_text().splitlines() if "uses:" in line]
    lines = [line for line in lines if not line.startswith("#")]
    assert len(lines) == sum("uses" in step for step in STEPS)
    for line in lines:
        assert re.search(r"uses: [\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$", line), line


def test_the_guide_has_every_input_and_output_and_what_was_not_tried():
    text = GUIDE.read_text()
    missing = [name for name in (*ACTION["inputs"], *ACTION["outputs"]) if f"`{name}`" not in text]
    assert missing == []
    uses = {step["uses"].partition("@")[0] for step in STEPS if "uses" in step}
    assert [name for name in uses if f"`{name}`" not in text] == []


def test_every_step_that_may_be_asked_about_has_a_name():
    asked = set(re.findall(r"steps\.([\w-]+)\.", (ROOT / "action.yml").read_text()))
    assert asked <= {step.get("id") for step in STEPS}


CONTEXT = {"github": {"event_name": "push", "ref_name": "main"}, "inputs": {"a-b": "true"}}


@each(
    "text, value",
    [
        ("github.event_name == 'push'", True),
        ("github.event_name != 'push' || inputs.a-b == 'TRUE'", True),
        ("!cancelled() && (github.ref_name == 'x')", False),
        ("github.nothing.at.all == ''", True),
        ("'it''s'", "it's"),
    ],
)
def test_expressions_are_read_as_github_reads_them(text, value):
    assert Expression(text, CONTEXT, {"cancelled": lambda: False}).value() == value


@each(
    "condition, has_failed, runs",
    [
        (None, False, True),
        (None, True, False),
        ("${{ !cancelled() }}", True, True),
        ("true", True, False),
    ],
)
def test_a_step_runs_after_a_failure_only_if_it_asks(condition, has_failed, runs):
    functions = {"success": lambda: not has_failed, "cancelled": lambda: False}
    assert holds(condition, {"true": True}, functions) is runs
