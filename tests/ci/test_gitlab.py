"""The template for GitLab: its scripts run on a real repository, with the changes of the action."""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from markdown_it import MarkdownIt

from tests.ci import repository
from tests.ci.server import serving
from tests.docs.pages import ROOT
from tests.fixtures.engines import needs_rtx
from tests.fixtures.slow import SLOW

TEMPLATE = yaml.safe_load((ROOT / "ci" / "gitlab.yml").read_text())["trtcal"]
EVENTS = {"merge": "merge_request_event", "push": "push"}
LONGEST_S = 1200
REQUEST = 7


class Project:
    """A repository on GitLab, and the cache of its default branch."""

    def __init__(self, folder: Path, forge) -> None:
        self.folder, self.forge = folder, forge
        self.repository = repository.make_repository(folder / "repository")
        self.cache: Path | None = None
        self.printed = ""

    def job(self, name, change=None, event="merge", **variables) -> int:
        """Run the job on a change of main, in a checkout of its own; return its exit status."""
        repository.git(self.repository, "checkout", "-q", "-B", name, "main")
        if change:
            change(self.repository)
            repository.commit(self.repository, name)
        self.place = self.folder / name
        repository.git(
            self.folder, "clone", "-q", "-b", name, str(self.repository), str(self.place)
        )
        kept = self.place / TEMPLATE["cache"]["paths"][0]
        if self.cache:
            shutil.copytree(self.cache, kept, dirs_exist_ok=True)
        own = {**self._variables(event), **variables}
        status = self._script(TEMPLATE["script"], own, stops=True)
        own["CI_JOB_STATUS"] = "failed" if status else "success"
        self._script(TEMPLATE["after_script"], own, stops=False)
        (policy,) = [
            rule["variables"]["TRTCAL_CACHE"]
            for rule in TEMPLATE["rules"]
            if EVENTS[event] in rule["if"]
        ]
        if status == 0 and policy == "pull-push":
            self.cache = self.folder / f"{name}.cache"
            shutil.copytree(kept, self.cache)
        return status

    def _script(self, lines, variables, stops) -> int:
        script = self.place.with_suffix(".sh")
        script.write_text("\n".join([f"set -{'e' * stops}o pipefail", *lines]))
        done = subprocess.run(
            ["bash", str(script)],  # noqa: S607
            cwd=self.place,
            env=variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LONGEST_S,
        )
        self.printed += done.stdout
        return done.returncode

    def _variables(self, event: str) -> dict[str, str]:
        own = {
            name: value.replace("$CI_PROJECT_DIR", str(self.place))
            for name, value in TEMPLATE["variables"].items()
        }
        request = {"CI_MERGE_REQUEST_IID": str(REQUEST)} if event == "merge" else {}
        return {
            **own,
            **request,
            "TRTCAL_BASE_LIMITS": "top1 >= -0.5\nengine_bytes <= +50%\n",
            "TRTCAL_TOKEN": "secret-token",
            "CI_API_V4_URL": self.forge.url,
            "CI_DEFAULT_BRANCH": "main",
            "CI_JOB_NAME_SLUG": "trtcal",
            "CI_PIPELINE_SOURCE": EVENTS[event],
            "CI_PROJECT_DIR": str(self.place),
            "CI_PROJECT_ID": "12",
            "HOME": str(self.folder),
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "XDG_STATE_HOME": str(self.folder / "state"),
        }

    def baseline(self) -> dict[str, str]:
        """Return the digests of the files in the cache."""
        files = sorted(self.cache.iterdir())
        return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}

    def note(self) -> str:
        """Return the note of the merge request, which has one of ours."""
        (note,) = (each for each in self.forge.comments if each["author"]["username"] == "bot")
        return note["body"]


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """The project after a good push to main."""
    with serving(login="bot") as forge:
        project = Project(tmp_path_factory.mktemp("gitlab"), forge)
        project.first = project.job("first", event="push")
        yield project


@SLOW
@needs_rtx
class TestOnARepository:
    """One job after the other on one project."""

    def test_a_good_push_makes_the_baseline(self, project):
        assert project.first == 0, project.printed
        assert [*project.baseline()] == ["config.toml", "history.sqlite", "int8-percentile.onnx"]
        assert project.forge.requests == []

    def test_a_good_change_passes_and_its_note_is_changed_in_place(self, project):
        before = project.baseline()
        project.forge.comments.clear()
        project.forge.add("<!-- trtcal trtcal -->\nnot ours", login="somebody", kind="User")
        assert project.job("good", repository.change_calibration) == 0, project.printed
        assert "**trtcal: success**" in project.note()
        assert "calibration data" in project.note()
        assert "### A/B tests" in project.note()
        assert project.job("again", repository.change_calibration) == 0
        assert [request.split()[0] for request in project.forge.written()] == ["POST", "PUT"]
        assert project.baseline() == before
        names = {
            path for path in TEMPLATE["artifacts"]["paths"] if (project.place / path).is_file()
        }
        assert names == {*TEMPLATE["artifacts"]["paths"]}

    @pytest.mark.parametrize(
        ("change", "status", "words"),
        [
            (
                repository.spoil_data,
                1,
                ("- run: exit status 1", '    +methods = ["minmax"]', "DO NOT SHIP"),
            ),
            (
                repository.ruin_model,
                1,
                ("- ab: exit status 1", "- history: exit status 1", "-19.8 points"),
            ),
            (repository.lose_layers, 1, ("- run: exit status 1", "int8&#95;macs")),
            (repository.break_config, 2, ("- run: exit status 2", "    error: trtcal.toml")),
        ],
        ids=["data", "model", "layers", "configuration"],
    )
    def test_a_bad_change_fails_and_says_why(self, project, change, status, words):
        before = project.baseline()
        project.forge.comments.clear()
        assert project.job(change.__name__, change) == status, project.printed
        assert "**trtcal: failed**" in project.note()
        for word in words:
            assert word in project.note()
        assert "<img" not in MarkdownIt("commonmark").enable("table").render(project.note())
        assert project.baseline() == before

    def test_a_bad_push_keeps_the_good_baseline(self, project):
        before = project.baseline()
        assert project.job("bad-push", repository.ruin_model, event="push") == 1
        assert project.baseline() == before

    def test_without_a_token_or_with_one_that_may_not_write_the_job_passes(self, project):
        project.forge.comments.clear()
        assert project.job("no-token", TRTCAL_TOKEN="") == 0
        project.forge.refuses = 403
        try:
            assert project.job("read-only") == 0
        finally:
            project.forge.refuses = 0
        assert project.forge.comments == []
        assert "warning: no note: 403" in project.printed

    def test_a_baseline_in_the_repository_is_refused(self, project):
        def forge_baseline(folder: Path) -> None:
            (folder / ".trtcal" / "baseline").mkdir(parents=True)
            (folder / ".trtcal" / "baseline" / "x.onnx").write_bytes(b"")

        assert project.job("forged", forge_baseline) == 2
        assert "error: .trtcal is in the repository" in project.printed


def test_only_a_push_to_the_default_branch_writes_the_cache():
    policies = {rule["if"]: rule["variables"]["TRTCAL_CACHE"] for rule in TEMPLATE["rules"]}
    writes = [condition for condition, policy in policies.items() if "push" in policy]
    assert writes == ['$CI_PIPELINE_SOURCE == "push" && $CI_COMMIT_BRANCH == $CI_DEFAULT_BRANCH']
    assert TEMPLATE["cache"]["when"] == "on_success"
