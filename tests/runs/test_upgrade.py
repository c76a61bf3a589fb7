import pytest

from tests.fixtures.commands import answer
from tests.fixtures.fails import fails
from trtcal import InputError
from trtcal.documents import digest_file, read_document, read_json, seal, write_document, write_json
from trtcal.documents.schema import CHANGES, Change, convert, convert_config
from trtcal.runs.bundle.verifying import SIGNATURE
from trtcal.runs.history import History
from trtcal.runs.upgrade import upgrade
from trtcal.runs.verify import verify

OLD = {
    "kind": "ab",
    "schema_version": 2,
    "samples": 8,
    "interim": [{"samples": 4, "word": "ROLL BACK"}],
    "measured": {
        "verdict": {"word": "ROLL BACK", "sentence": "B fails: see `trtcal explain loss`"}
    },
}


def folder_of_before(folder):
    folder.mkdir()
    test = write_document(folder / "ab.json", OLD)
    (folder / "trtcal.toml").write_text('model = "a.onnx"  # see trtcal fusion\n')
    stages = [{"stage": "ab", "output": "ab.json", "digest": test["digest"]}]
    config = digest_file(folder / "trtcal.toml")
    times = {test["digest"]: {"ms": 3}}
    run = {
        "kind": "run",
        "schema_version": 1,
        "stages": stages,
        "config": config,
        "measured": times,
    }
    write_document(folder / "run.json", run)
    return folder


def test_a_run_of_before_is_converted_and_its_digests_hold(tmp_path):
    run = folder_of_before(tmp_path / "run")
    assert all(check.holds for check in verify(run))
    assert {path.name for path in upgrade(run)} == {"ab.json", "run.json", "trtcal.toml"}
    test = read_document(run / "ab.json", "ab", 3)
    assert test["measured"]["verdict"]["word"] == test["interim"][0]["word"] == "DO NOT SHIP"
    assert "`trtcal log --explain loss`" in test["measured"]["verdict"]["sentence"]
    document = read_json(run / "run.json")
    assert document["stages"][0]["digest"] == test["digest"]
    assert document["measured"] == {test["digest"]: {"ms": 3}}
    assert document["config"] == digest_file(run / "trtcal.toml")
    assert all(check.holds for check in verify(run))
    assert upgrade(run) == []


def test_a_signed_bundle_stays_as_it_is(tmp_path):
    bundle = folder_of_before(tmp_path / "bundle")
    write_json(bundle / SIGNATURE, {})
    before = (bundle / "ab.json").read_bytes()
    assert upgrade(tmp_path) == []
    assert (bundle / "ab.json").read_bytes() == before


def test_an_altered_document_is_refused_and_nothing_changes(tmp_path):
    run = folder_of_before(tmp_path / "run")
    altered = {**read_json(run / "run.json"), "stages": []}
    write_json(run / "run.json", altered)
    before = (run / "ab.json").read_bytes()
    with fails(InputError, "run.json"):
        upgrade(run)
    assert (run / "ab.json").read_bytes() == before


def test_a_history_gets_the_words_of_today(tmp_path):
    history = History(tmp_path / "history.sqlite")
    with history._open() as connection:
        row = ("r", "2026-01-01", "net", "ROLL BACK", None, "", None, None, "{}")
        connection.execute("INSERT INTO runs VALUES (1, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
    assert upgrade(tmp_path) == [history.path]
    assert history.entry(1).verdict == "DO NOT SHIP"
    assert upgrade(tmp_path) == []


def test_what_is_too_old_names_the_command_that_converts_it(tmp_path, capsys):
    path = tmp_path / "ab.json"
    write_document(path, OLD)
    with pytest.raises(InputError) as raised:
        read_document(path, "ab", 3)
    command = str(raised.value.hint).split("`")[1]
    assert answer(capsys, *command.split()[1:]) == {"converted": [str(path)]}
    assert read_document(path, "ab", 3)["samples"] == 8


def test_every_change_converts_to_a_newer_version_only():
    for change in CHANGES:
        document = seal({"kind": change.kind, "schema_version": change.version + 1, "word": "x"})
        assert convert(document) == document


def test_keys_of_a_configuration_are_renamed_in_their_table():
    text = "# limit = 1\nlimit = 2\n[build]\nlimit = 3 # h\n[[suppress]]\nlimit = 4\n"
    renamed = {"build.limit": "build.limit_h", "suppress.limit": "suppress.most"}
    wanted = "# limit = 1\nlimit = 2\n[build]\nlimit_h = 3 # h\n[[suppress]]\nmost = 4\n"
    assert convert_config(text, renamed) == wanted


def test_the_line_of_a_key_that_is_gone_becomes_a_comment():
    assert convert_config("[build]\ngone = 1", {"build.gone": ""}) == "[build]\n# removed: gone = 1"


def test_a_key_with_its_parent_is_renamed_there_only():
    change = Change("thing", 2, {"samples.chosen": "selection"}, {"samples.how": {"old": "new"}})
    before = {"samples": [{"chosen": 3, "how": "old"}], "chosen": 1, "how": "old"}
    after = {"samples": [{"selection": 3, "how": "new"}], "chosen": 1, "how": "old"}
    assert change.convert(before) == after
