"""A run records which configuration it had, and the commit of its folder."""

import hashlib
import shutil
import subprocess

import pytest

from trtcal.documents import to_fields
from trtcal.runs.origin import Configuration

NOTHING = {"digest": None, "commit": None, "differs": None}


def configuration_of(path):
    return to_fields(Configuration.of(path))


def git(folder, *words):
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    command = ["git", "-C", str(folder), *identity, *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "trtcal.toml"
    path.write_text('model = "a.onnx"\n')
    return path


def test_a_file_without_git_has_a_digest_and_no_commit(file, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(file.parent.parent))
    found = configuration_of(file)
    digest = "sha256:" + hashlib.sha256(file.read_bytes()).hexdigest()
    assert found == {"digest": digest, "commit": None, "differs": None}
    assert configuration_of(file.with_name("none.toml")) == NOTHING


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
@pytest.mark.parametrize("form", ["sha1", "sha256"])
def test_the_commit_is_that_of_the_folder_and_a_changed_file_differs(file, form):
    git(file.parent, "init", "-q", f"--object-format={form}")
    assert configuration_of(file)["commit"] is None
    git(file.parent, "add", file.name)
    git(file.parent, "commit", "-q", "-m", "one")
    commit = git(file.parent, "rev-parse", "HEAD")
    found = configuration_of(file)
    assert (found["commit"], found["differs"]) == (commit, False)
    file.write_text('model = "b.onnx"\n')
    assert configuration_of(file)["differs"] is True
    other = file.with_name("new.toml")
    other.write_text("")
    found = configuration_of(other)
    assert (found["commit"], found["differs"]) == (commit, True)


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_no_program_that_the_folder_names_runs(file, tmp_path):
    git(file.parent, "init", "-q")
    git(file.parent, "add", file.name)
    git(file.parent, "commit", "-q", "-m", "one")
    ran = tmp_path / "ran"
    for key in ("core.fsmonitor", "core.pager", "filter.x.clean", "diff.external"):
        git(file.parent, "config", key, f"touch {ran}")
    file.with_name(".gitattributes").write_text("* filter=x\n")
    file.write_text("changed = 1\n")
    assert configuration_of(file)["differs"] is True
    assert not ran.exists()
