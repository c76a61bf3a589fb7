"""The workflows of CI and of a release: what they may do, what they run, and that it exists."""

import importlib.util
import json
import os
import re
import shlex
from pathlib import Path

import check_jsonschema
import yaml
from jsonschema import Draft7Validator

from tests.fixtures.tables import each
from tests.release.lock import ROOT
from trtcal.config import tomllib

FOLDER = ROOT / ".github" / "workflows"
WORKFLOWS = {path.name: yaml.safe_load(path.read_text()) for path in FOLDER.glob("*.yml")}
JOBS = [(file, name, job) for file, one in WORKFLOWS.items() for name, job in one["jobs"].items()]
STEPS = [(f"{file}: {name}", step) for file, name, job in JOBS for step in job["steps"]]
RUNS = [(place, step["run"]) for place, step in STEPS if "run" in step]
OTHERS = {"cd", "cp", "echo", "gh", "mkdir", "sha256sum"}
"""Programs that GitHub's machines have, and Debian."""
RELEASE = WORKFLOWS["release.yml"]


def test_both_workflows_are_there():
    assert sorted(WORKFLOWS) == ["ci.yml", "release.yml"]


@each("file", sorted(WORKFLOWS))
def test_a_workflow_is_what_the_public_schema_asks_for(file):
    vendored = (
        Path(check_jsonschema.__file__).parent
        / "builtin_schemas"
        / "vendor"
        / "github-workflows.json"
    )
    text = re.sub(r"^on:", '"on":', (FOLDER / file).read_text(), flags=re.MULTILINE)
    faults = Draft7Validator(json.loads(vendored.read_text())).iter_errors(yaml.safe_load(text))
    assert [error.message[:200] for error in faults] == []


@each("place, step", STEPS)
def test_actions_are_pinned_by_commit_and_say_their_version(place, step):
    if "uses" in step:
        file = place.partition(":")[0]
        assert re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}", step["uses"]), place
        line = next(one for one in (FOLDER / file).read_text().splitlines() if step["uses"] in one)
        assert re.search(r" # v\d+\.\d+\.\d+$", line), line


def test_equal_actions_have_equal_commits():
    pins = {}
    for _, step in STEPS:
        if "uses" in step:
            name, _, commit = step["uses"].partition("@")
            pins.setdefault(name, set()).add(commit)
    assert {name: commits for name, commits in pins.items() if len(commits) > 1} == {}


def test_a_job_may_do_only_what_it_needs():
    assert all(one["permissions"] == {} for one in WORKFLOWS.values())
    granted = {f"{file}: {name}": job["permissions"] for file, name, job in JOBS}
    assert granted == {
        "ci.yml: run": {"contents": "read"},
        "release.yml: build": {"contents": "read"},
        "release.yml: test": {"contents": "read"},
        "release.yml: attest": {"id-token": "write", "attestations": "write"},
        "release.yml: publish": {"id-token": "write"},
        "release.yml: release": {"contents": "write"},
    }
    assert all(job["timeout-minutes"] <= 90 for _, _, job in JOBS)


def test_who_may_publish_runs_nothing_of_the_repository():
    """No checkout, no package: what was built and tested before is only passed on."""
    for name in ("attest", "publish", "release"):
        steps = RELEASE["jobs"][name]["steps"]
        assert not [one for one in steps if "checkout" in one.get("uses", "")]
        assert not [one for one in steps if re.search(r"\b(make|pip|python)\b", one.get("run", ""))]
    assert RELEASE["jobs"]["publish"]["environment"]["name"] == "pypi"


def test_a_release_goes_from_a_tag_through_every_job():
    jobs = RELEASE["jobs"]
    assert RELEASE[True] == {"push": {"tags": ["v*"]}}  # YAML 1.1 reads `on` as true
    needs = {name: job.get("needs") for name, job in jobs.items()}
    assert needs == {
        "build": None,
        "test": "build",
        "attest": ["build", "test"],
        "publish": "attest",
        "release": "publish",
    }
    assert "secrets." not in (FOLDER / "release.yml").read_text()


def test_the_wheel_is_tested_on_every_python_that_is_supported():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    known = [one.rpartition(" ")[2] for one in project["classifiers"] if ":: Python :: 3." in one]
    assert RELEASE["jobs"]["test"]["strategy"]["matrix"]["python"] == known


@each("place, run", RUNS)
def test_no_expression_of_github_is_pasted_into_a_shell(place, run):
    assert "${{" not in run, place


@each("place, run", RUNS)
def test_what_a_step_runs_exists(place, run):
    targets = re.findall(r"^([\w./-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for command in re.split(r"\n|&&", run.strip()):
        words = [one for one in shlex.split(command.partition(">")[0]) if "=" not in one]
        program, rest = words[0], words[1:]
        if program == "make":
            assert set(rest) <= {*targets, ".venv/.ready"}, place
        elif program == ".venv/bin/python":
            assert importlib.util.find_spec(rest[1]), place
        elif program.startswith("."):
            assert os.access(ROOT / program, os.X_OK), place
        else:
            assert program in OTHERS, (place, program)
