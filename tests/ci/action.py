"""Runs the `run:` steps of action.yml as a runner does. Those that use other actions are not run.

What the cache and the artifact would do is done by moving the folders that the steps name.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.ci.expressions import filled, holds
from tests.docs.pages import ROOT

ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
STEPS = ACTION["runs"]["steps"]
BASH = ["bash", "--noprofile", "--norc", "-eo", "pipefail"]
LONGEST_S = 1200


@dataclass
class Job:
    """One job of a workflow: a checkout, an event, inputs, and the caches of the project."""

    folder: Path
    temporary: Path
    event: str
    payload: dict[str, Any]
    inputs: Mapping[str, str]
    caches: dict[str, Path]
    api: str = ""
    ref: str = "main"
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.temporary.mkdir(parents=True)
        self.outputs: dict[str, dict[str, str]] = {}
        self.outcomes: dict[str, str] = {}
        self.printed: dict[str, str] = {}
        self.uses: list[str] = []
        self.artifacts: list[Path] = []
        self.has_failed = False
        (self.temporary / "event.json").write_text(json.dumps(self.payload))
        self.summary = self.temporary / "summary.md"
        self.summary.touch()

    @property
    def context(self) -> dict[str, Any]:
        """What the expressions of the action may ask."""
        steps = {
            name: {"outputs": self.outputs.get(name, {}), "outcome": outcome}
            for name, outcome in self.outcomes.items()
        }
        github = {
            "event_name": self.event,
            "event": self.payload,
            "ref_name": self.ref,
            "ref_type": "branch",
            "token": "secret-token",
            "run_id": self.temporary.name,
            "run_attempt": 1,
        }
        context = {"github": github, "steps": steps, "inputs": {}}
        defaults = {name: str(one.get("default", "")) for name, one in ACTION["inputs"].items()}
        unknown = self.inputs.keys() - defaults.keys()
        assert not unknown, unknown
        own = {name: filled(text, context, self._functions) for name, text in defaults.items()}
        return {**context, "inputs": {**own, **self.inputs}}

    @property
    def _functions(self) -> dict[str, Any]:
        return {
            "always": lambda: True,
            "cancelled": lambda: False,
            "success": lambda: not self.has_failed,
            "failure": lambda: self.has_failed,
        }

    def fill(self, text: object) -> str:
        """Return a text of the action with its expressions replaced."""
        return filled(str(text), self.context, self._functions)

    def run(self, skipped: tuple[str, ...] = ()) -> int:
        """Run all steps but some; return 1 if one failed."""
        for number, step in enumerate(STEPS):
            name = step.get("id", str(number))
            if name in skipped or not holds(step.get("if"), self.context, self._functions):
                self.outcomes[name] = "skipped"
                continue
            is_good = self._use(step) if "uses" in step else self._execute(name, step) == 0
            self.outcomes[name] = "success" if is_good else "failure"
            self.has_failed |= not is_good and not step.get("continue-on-error", False)
        return int(self.has_failed)

    def result(self, name: str) -> str:
        """Return an output of the action."""
        return self.fill(ACTION["outputs"][name]["value"])

    def _use(self, step: dict[str, Any]) -> bool:
        action = step["uses"].partition("@")[0]
        self.uses.append(action)
        values = {key: self.fill(text) for key, text in step.get("with", {}).items()}
        does = {"restore": self._restore, "save": self._save, "upload-artifact": self._upload}
        does.get(action.rpartition("/")[2], lambda values: None)(values)
        return True

    def _restore(self, values: Mapping[str, str]) -> None:
        keys = [key for key in self.caches if key.startswith(values["restore-keys"])]
        if keys:
            shutil.copytree(self.caches[keys[-1]], values["path"], dirs_exist_ok=True)

    def _save(self, values: Mapping[str, str]) -> None:
        assert values["key"] not in self.caches
        kept = self.temporary / "cache"
        shutil.copytree(values["path"], kept)
        self.caches[values["key"]] = kept

    def _upload(self, values: Mapping[str, str]) -> None:
        for pattern in (word for word in values["path"].split() if not word.startswith("!")):
            self.artifacts += sorted(Path("/").glob(pattern.lstrip("/")))

    def _execute(self, name: str, step: dict[str, Any]) -> int:
        assert step["shell"] == "bash"
        script, output = self.temporary / f"{name}.sh", self.temporary / f"{name}.output"
        script.write_text(step["run"])
        output.touch()
        own = {key: self.fill(text) for key, text in step.get("env", {}).items()}
        done = subprocess.run(
            [*BASH, str(script)],
            cwd=self.folder / self.fill(step.get("working-directory", ".")),
            env={**self._environment(output), **own, **self.environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LONGEST_S,
        )
        self.printed[name] = done.stdout
        lines = [line.partition("=") for line in output.read_text().splitlines()]
        self.outputs[name] = {key: value for key, _, value in lines}
        return done.returncode

    def _environment(self, output: Path) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("LANG", "TMPDIR") if name in os.environ}
        return {
            **kept,
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "HOME": str(self.temporary),
            "XDG_STATE_HOME": str(self.temporary / "state"),
            "GITHUB_ACTION_PATH": str(ROOT),
            "GITHUB_API_URL": self.api,
            "GITHUB_EVENT_PATH": str(self.temporary / "event.json"),
            "GITHUB_OUTPUT": str(output),
            "GITHUB_REPOSITORY": "somebody/something",
            "GITHUB_STEP_SUMMARY": str(self.summary),
            "GITHUB_WORKSPACE": str(self.folder),
            "RUNNER_TEMP": str(self.temporary),
        }
