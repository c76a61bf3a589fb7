"""Names and places are taken out where they are names and places, and nowhere else."""

import json

import pytest

from tests.fixtures.tables import each
from trtcal.documents import digest_document, seal
from trtcal.documents.redaction import REDACTED, Redaction

USER, HOST = "zelda-fitzgerald", "rechner-siebzehn"


@pytest.fixture(autouse=True)
def here(monkeypatch, tmp_path):
    """Work as this user, on this host, in a folder of a customer."""
    for variable in ("USER", "LOGNAME"):
        monkeypatch.setenv(variable, USER)
    monkeypatch.setenv("HOSTNAME", HOST)
    monkeypatch.setenv("HOME", str(tmp_path / USER))
    folder = tmp_path / USER / "geheim kunde"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    return folder


PLACES = [
    ("/home/anna/geheim/net.onnx", f"{REDACTED}/net.onnx"),
    ("cannot read /home/anna/geheim: denied", f"cannot read {REDACTED}: denied"),
    ("'/home/max.muster'", f"'{REDACTED}'"),
    ("/root/.cache/x/model.plan,", f"{REDACTED}/model.plan,"),
    ("file:///data/../home/anna/x/y.log", f"{REDACTED}/y.log"),
    ("~/geheim/net.onnx", f"{REDACTED}/net.onnx"),
    ("~anna/geheim/net.onnx", f"{REDACTED}/net.onnx"),
    ("../../home/anna/net.onnx", f"{REDACTED}/net.onnx"),
    (r"C:\Users\Anna\geheim\net.onnx", f"{REDACTED}/net.onnx"),
    (r"\\server\geheim\net.onnx", f"{REDACTED}/net.onnx"),
    ('File "/usr/lib/geheim/y.py", line 3', f'File "{REDACTED}/y.py", line 3'),
    ("/var/x/model.py:12: error", f"{REDACTED}/model.py:12: error"),
    ("/home/anna/bilder/max-muster.png is broken", f"{REDACTED} is broken"),
    ("max-muster.png: not an image", f"{REDACTED}: not an image"),
    (f"ssh: {HOST}.local: no route", f"ssh: {REDACTED}.local: no route"),
    ("log in with `ssh anna@orin`", f"log in with `ssh {REDACTED}`"),
    ("ssh://anna@orin:22", REDACTED),
    ("anna@kunde.example", REDACTED),
    (f"by {USER.title()}", f"by {REDACTED}"),
]
KEPT = [
    "../net.onnx",
    "reports/digits/report.html",
    "int8/fp16 of 1/255",
    "sha256:" + "ab" * 32,
    "p50_ms@orin",
    "@orin",
    "and/or",
    "https://onnx.ai/onnx/operators/",
    "top1 >= -1.0 points",
    "image[0]/data:0",
]


@each("text, redacted", PLACES)
def test_names_and_places_are_taken_out_of_a_text(text, redacted):
    assert Redaction([]).text(text) == redacted


@each("text", [redacted for _, redacted in PLACES])
def test_what_is_redacted_stays_as_it_is(text):
    assert Redaction([]).text(text) == text


@each("text", KEPT)
def test_other_texts_stay(text):
    assert Redaction([]).text(text) == text


def test_a_folder_with_a_space_is_taken_out_as_a_whole(here):
    assert Redaction([]).text(f"no {here}/builds/a/build.log") == f"no {REDACTED}/build.log"


@each("user", ["data", "root", "model", "max", "test", "conv"])
def test_a_user_called_by_an_ordinary_word_changes_no_text(user):
    sentence = f"the {user} of {user}/conv1, --{user} {user}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("USER", user)
        assert Redaction([]).text(sentence) == sentence
        assert Redaction([]).text(f"/home/{user}/x/y.log") == f"{REDACTED}/y.log"


def test_names_of_tensors_stay_whatever_they_look_like():
    names = ["/home/conv/Conv_output_0", "/var/add", USER, "max-muster.png", f"block/{USER}/relu"]
    layers = {"layers": [{"name": name, "nodes": [name]} for name in names], "ranges": {}}
    layers["ranges"] = {name: {"amax": 1.0} for name in names}
    layers["sentence"] = f"{names[0]} lost its fusion, (as {names[1]}), and {names[4]}."
    assert Redaction([layers]).value(layers) == layers


def test_samples_and_slices_get_numbers_that_are_the_same_everywhere():
    worst = {"worst": [{"index": 7, "name": "max muster.png", "cosine": 0.5}]}
    groups = [{"name": "klinik=nord"}, {"name": "klinik=süd"}]
    slices = {"by": "slices", "groups": groups}
    text = {"sentence": "klinik=süd loses most, such as 'max muster.png'", "groups": groups}
    worst, slices, text = map(Redaction([worst, slices, text]).value, (worst, slices, text))
    assert worst["worst"] == [{"index": 7, "name": "sample 7", "cosine": 0.5}]
    assert [group["name"] for group in slices["groups"]] == ["klinik=1", "klinik=2"]
    assert text["groups"] == slices["groups"]
    assert text["sentence"] == "klinik=2 loses most, such as 'sample 7'"


def test_values_of_samples_are_left_out_and_figures_stay():
    tails = {"tensors": {"x": [{"index": 3, "name": None, "value": 0.73124}]}, "observed": 0.73124}
    assert Redaction([tails]).value(tails) == {"tensors": {"x": []}, "observed": 0.73124}


def test_files_of_data_are_left_out_of_commands_and_settings():
    document = {
        "command": "trtcal run net.onnx --data 'max muster.npz' --labels folders --batch 8",
        "config": {"data": "max.npz", "labels": "csv", "model": "net.onnx"},
        "dataset_name": "max",
    }
    redacted = Redaction([document]).value(document)
    assert redacted["command"].startswith(f"trtcal run net.onnx --data {REDACTED} --labels")
    assert redacted["command"].endswith("--batch 8")
    assert redacted["config"] == {"data": REDACTED, "labels": "csv", "model": "net.onnx"}
    assert redacted["dataset_name"] == REDACTED


def test_documents_name_each_other_by_their_new_digests():
    first = seal({"kind": "a", "source": "/home/anna/x/y.log"})
    second = seal({"kind": "b", "of": first["digest"]})
    third = seal({"kind": "run", "stages": [first["digest"], second["digest"]]})
    every = {"first": first, "second": second, "third": third, "other": [1, "two"]}
    done = Redaction(every.values()).documents(every, {})
    assert all(
        done[name]["digest"] == digest_document(done[name]) for name in every if name[0] != "o"
    )
    assert done["second"]["of"] == done["first"]["digest"] != first["digest"]
    assert done["third"]["stages"] == [done["first"]["digest"], done["second"]["digest"]]
    assert [name for name in every if "redacted" in done[name]] == ["third"]
    assert done["other"] == [1, "two"]
    assert "anna" not in json.dumps(done)


def test_redacting_twice_changes_nothing_more():
    document = {"host": "anna@orin", "worst": [{"index": 7, "name": "max.png"}], "by": "slices"}
    document |= {"groups": [{"name": "a=x"}, {"name": "a=y"}], "dataset_name": "x"}
    once = Redaction([document]).value(document)
    assert Redaction([once]).value(once) == once
