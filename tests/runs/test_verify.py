"""Digests are recomputed, and what was changed is named."""

import json
import shutil
from pathlib import Path
from random import Random

import numpy as np
import pytest

from tests.conftest import SAMPLES
from tests.fixtures.commands import refused, succeed
from tests.fixtures.commands import run as run_line
from tests.fixtures.fails import fails
from tests.fixtures.slow import SLOW
from tests.reporting.samples import accuracy, build, comparison, row, write_report, write_run
from tests.runs.conftest import VARIANT, forge_record
from trtcal.cli.main import run_command
from trtcal.documents import FILES, canonical_json, digest_file, files_in, seal, write_json
from trtcal.errors import InputError
from trtcal.model import load_model
from trtcal.runs.bundle.building import make_bundle
from trtcal.runs.bundle.signing import envelope
from trtcal.runs.bundle.verifying import MANIFEST, SIGNATURE, Options
from trtcal.runs.bundle.verifying import verify as verify_bundle
from trtcal.runs.verify import OF_CONTENT, OF_FILES, OF_SIGNATURE, verify


@pytest.fixture
def run(tmp_path):
    folder = write_run(
        tmp_path / "run",
        comparison(row("int8", accuracy(3, 1))),
        build("int8", {"conv1": "int8"}),
    )
    write_report(folder, folder / "report.html")
    return folder


def test_what_was_not_changed_holds(run, capsys):
    assert all(check.holds for check in verify(run))
    assert "digests match" in succeed(capsys, "verify", run, run / "report.html")


def test_any_byte_of_a_page_that_is_changed_is_found(run):
    page = run / "report.html"
    whole = page.read_bytes()
    places = np.random.default_rng(0).choice(len(whole), 200, replace=False)
    for place in places.tolist():
        other = bytes([whole[place] ^ 1])
        page.write_bytes(whole[:place] + other + whole[place + 1 :])
        assert not is_whole(page), place
    page.write_bytes(whole)
    assert verify(page)[0].holds


def is_whole(page):
    """Tell whether a page verifies; one that lost its seal does not."""
    try:
        return verify(page)[0].holds
    except InputError:
        return False


@pytest.mark.parametrize("section", ["verdict", "variants", "provenance"])
def test_the_section_is_named(run, section):
    page = run / "report.html"
    text = page.read_text()
    start = text.index(f'<section id="{section}"')
    place = text.index("</h2>", start)
    page.write_text(f"{text[:place]}!{text[place:]}")
    assert verify(page)[0].problem == f"changed: {section}"


def test_a_section_that_was_cut_out_is_named(run):
    page = run / "report.html"
    text = page.read_text()
    start = text.index('<section id="log"')
    end = text.index("</section>", start) + len("</section>")
    page.write_text(text[:start] + text[end:])
    assert "log" in verify(page)[0].problem


def test_documents_logs_and_engines_are_checked(run, capsys):
    log = run / "builds" / "0" / "build.log"
    log.write_text(log.read_text() + "x")
    document = run / "comparison.json"
    document.write_text(document.read_text().replace('"samples": 2000', '"samples": 501'))
    problems = {check.what: check.problem for check in verify(run) if not check.holds}
    assert set(problems) == {"builds/0/build.json: build.log", "comparison.json"}
    assert run_command(["verify", str(run)]) == 1
    assert "comparison.json: changed" in capsys.readouterr().out


def test_what_has_no_digest_is_refused(tmp_path):
    (tmp_path / "page.html").write_text("<html></html>")
    (tmp_path / "plain.json").write_text("{}")
    for name in ("page.html", "plain.json", "nowhere.json"):
        with pytest.raises(InputError):
            verify(tmp_path / name)


@pytest.fixture
def whole(made_run, tmp_path):
    """A run of the command, which may be changed."""
    return Path(shutil.copytree(made_run, tmp_path / "run"))


@pytest.fixture
def bundle(made_bundle, tmp_path):
    return Path(shutil.copytree(made_bundle, tmp_path / "bundle"))


def problems(path, key=None):
    """Return what `verify` says is wrong, by part and file."""
    return {(check.part, check.what): check.problem for check in verify(path, key) if check.problem}


def unchecked(path):
    """Return what `verify` says that it did not check."""
    return {(check.part, check.what) for check in verify(path) if check.unchecked}


def is_named(name, checks):
    return any(name in f"{check.what} {check.problem}" for check in checks if not check.holds)


def missed(folder, count, check):
    """Change one byte at a time; return the files, places and bytes of changes not named by `check`."""
    rng = Random(count)  # noqa: S311
    files, lost = sorted(files_in(folder)), []
    for number in range(count):
        path = folder / (files[number] if number < len(files) else rng.choice(files))
        data = path.read_bytes()
        place = rng.randrange(len(data))
        byte = bytes([(data[place] + rng.randrange(1, 256)) % 256])
        path.write_bytes(data[:place] + byte + data[place + 1 :])
        name = path.relative_to(folder).as_posix()
        if not check(name):
            lost.append((name, place, data[place], byte))
        path.write_bytes(data)
    return lost


@pytest.mark.parametrize("count", [40, pytest.param(200, marks=SLOW)])
def test_any_byte_of_a_run_that_is_changed_is_found_and_its_file_named(whole, count):
    assert missed(whole, count, lambda name: is_named(name, verify(whole))) == []
    assert problems(whole) == {}


@pytest.mark.parametrize("count", [40, pytest.param(200, marks=SLOW)])
def test_any_byte_of_a_bundle_that_is_changed_is_found_and_its_file_named(bundle, keys, count):
    def is_found(name):
        ways = (Options(keys.public, self_test=False), Options(None, True, self_test=False))
        verdicts = [verify_bundle(bundle, options).verdict for options in ways]
        return is_named(name, verify(bundle)) and all(name in verdict for verdict in verdicts)

    assert missed(bundle, count, is_found) == []
    assert problems(bundle, keys.public) == {}


def cut(path, other):
    path.write_bytes(path.read_bytes()[:-1])


def delete(path, other):
    path.unlink()


def swap(path, other):
    shutil.copyfile(path, path.parent / "third")
    shutil.copyfile(other, path)
    shutil.move(path.parent / "third", other)


def link(path, other):
    """Put a link to the same bytes in the place of a file."""
    shutil.move(path, path.parents[1] / "elsewhere")
    path.symlink_to(path.parents[1] / "elsewhere")


@pytest.mark.parametrize("damage", [cut, delete, swap, link])
@pytest.mark.parametrize(
    "name", ["report.json", "report.html", "histograms.npz", f"models/{VARIANT}.onnx", FILES]
)
def test_a_file_of_a_run_that_is_cut_gone_swapped_or_a_link_is_named(whole, name, damage):
    damage(whole / name, whole / "settings.json")
    assert is_named(name, verify(whole))


def test_files_that_trtcal_did_not_write_are_named_and_no_error(whole, capsys):
    (whole / "notes.txt").write_text("mine")
    (whole / "models" / "own.json").write_text("{")
    (whole / "page.html").write_text("<html>")
    names = {"notes.txt", "models/own.json", "page.html"}
    assert {what for part, what in unchecked(whole) if part == OF_FILES} == names
    out = succeed(capsys, "verify", whole)
    assert "files: models/own.json, notes.txt, page.html not checked" in out
    for part in (OF_CONTENT, OF_FILES):
        count = sum(one.part == part and not one.unchecked for one in verify(whole))
        assert f"{part}: {count} of {count} digests match" in out
    assert "signature: run not checked" in out


def test_a_folder_or_file_inside_a_run_is_checked_by_the_record_of_the_run(whole):
    report = whole / "report.json"
    text = report.read_text()
    word = json.loads(text)["measured"]["verdict"]["word"]
    report.write_text(text.replace(f'"{word}"', '"SHIP"', 1))
    assert problems(report) == {(OF_FILES, "report.json"): "changed: its digest differs"}
    assert problems(whole.parent) == {(OF_FILES, "run/report.json"): "changed: its digest differs"}
    build = whole / "builds" / f"{VARIANT}-cpu"
    assert problems(build) == {}
    cut(build / "events.json", None)
    assert is_named("events.json", verify(build))


def test_a_run_of_before_says_that_its_files_were_not_recorded(whole, capsys):
    run = json.loads((whole / "run.json").read_text())
    del run["measured"]["record"]
    write_json(whole / "run.json", run)
    (whole / FILES).unlink()
    assert "files: run not checked: its files were not recorded" in succeed(capsys, "verify", whole)
    model = whole / "models" / f"{VARIANT}.onnx"
    flip(model)
    assert (OF_CONTENT, f"run: models/{VARIANT}.onnx") in problems(whole)


def test_a_path_is_checked_from_every_folder(whole, monkeypatch):
    run = json.loads((whole / "run.json").read_text())
    del run["measured"]["record"]
    write_json(whole / "run.json", run)
    (whole / FILES).unlink()
    flip(whole / "models" / f"{VARIANT}.onnx")
    monkeypatch.chdir(whole / "models")
    changed = (OF_CONTENT, f"run: models/{VARIANT}.onnx")
    assert changed in problems(Path("..") / ".." / "run")
    with fails(InputError, "../nowhere does not exist"):
        verify(Path("../nowhere"))


def flip(path):
    """Change one bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_a_forged_record_is_found_by_the_content_where_that_changed(whole, request_of, tmp_path):
    model, document = whole / "models" / f"{VARIANT}.onnx", whole / "comparison.json"
    for path, change in ((model, flip), (document, lambda path: forge(path, '"samples": ', "1"))):
        before = path.read_bytes()
        change(path)
        forge_record(whole)
        found = problems(whole)
        assert {part for part, _ in found} == {OF_CONTENT}
        assert any(path.name in what for _, what in found)
        path.write_bytes(before)
    forge(whole / "report.json", '"word": ', '"SHIP", "was": ')
    forge_record(whole)
    assert problems(whole) == {}
    assert (OF_SIGNATURE, "run") in unchecked(whole)


def forge(path, before, after):
    path.write_text(path.read_text().replace(before, f"{before}{after}", 1))


def test_only_its_signature_shows_that_a_whole_bundle_was_forged(bundle, keys):
    forge(bundle / "report.json", '"word": ', '"SHIP", "was": ')
    statement = json.loads((bundle / MANIFEST).read_text())
    subject = next(one for one in statement["subject"] if one["name"] == "report.json")
    subject["digest"] = {"sha256": digest_file(bundle / "report.json").partition(":")[2]}
    statement["predicate"]["sizes"]["report.json"] = (bundle / "report.json").stat().st_size
    payload = canonical_json(statement)
    (bundle / MANIFEST).write_bytes(payload)
    signatures = json.loads((bundle / SIGNATURE).read_text())["signatures"]
    write_json(bundle / SIGNATURE, seal({**envelope(payload, None), "signatures": signatures}))
    assert problems(bundle) == {}
    assert (OF_SIGNATURE, "bundle") in unchecked(bundle)
    (found,) = problems(bundle, keys.public).items()
    assert found == (
        (OF_SIGNATURE, "bundle"),
        "no signature of the bundle matches the given public key",
    )


def test_what_commands_write_into_a_run_is_recorded(whole, capsys):
    before = digest_file(whole / FILES)
    succeed(capsys, "report", whole, "-o", whole / "report.html")
    assert (problems(whole), unchecked(whole)) == ({}, {(OF_SIGNATURE, "run")})
    assert digest_file(whole / FILES) != before
    digits = SAMPLES / "digits"
    model = whole / "models" / f"{VARIANT}.onnx"
    line = ("ab", digits / "digits.onnx", model, "--data", digits / "test.npz")
    run_line(capsys, *line, "-o", whole / "tests" / "ab.json")
    assert unchecked(whole) == {(OF_SIGNATURE, "run")}
    flip(whole / "tests" / "ab.json")
    assert is_named("tests/ab.json", verify(whole))


@pytest.mark.parametrize("command", ["compare", "ab"])
def test_a_model_of_a_run_that_was_changed_is_not_opened(whole, capsys, command):
    model, digits = whole / "models" / f"{VARIANT}.onnx", SAMPLES / "digits"
    flip(model)
    line = (command, digits / "digits.onnx", model, "--data", digits / "test.npz", "-q")
    error = refused(capsys, *line)
    assert error.startswith(f"error: {model} was changed after trtcal wrote it")
    assert f"`trtcal verify {whole}`" in error
    inside = whole / "builds" / ".." / "models" / model.name
    with fails(InputError, FILES):
        load_model(inside)


def test_a_forged_report_is_neither_bundled_nor_pushed(whole, request_of, tmp_path, capsys):
    forge(whole / "report.json", '"word": ', '"SHIP", "was": ')
    with fails(InputError, "report.json", hint="trtcal verify"):
        make_bundle(request_of(run=whole), tmp_path / "bundle")
    assert "report.json" in refused(capsys, "store", "push", whole, "--store", tmp_path / "store")


def test_a_pulled_run_is_whole_and_what_trtcal_did_not_write_is_not_pushed(whole, tmp_path, capsys):
    (whole / "models" / "own.txt").write_text("mine")
    store = ("--store", tmp_path / "store")
    identity = succeed(capsys, "store", "push", whole, *store, "-q").split()[1]
    succeed(capsys, "store", "pull", identity, *store, "-o", tmp_path / "back", "-q")
    assert (problems(tmp_path / "back"), unchecked(tmp_path / "back")) == (
        {},
        {(OF_SIGNATURE, "back")},
    )
    assert not (tmp_path / "back" / "models" / "own.txt").exists()
