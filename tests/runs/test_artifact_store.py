"""The artifact store: what is pushed comes back, on a disk, in memory and in S3."""

import contextlib
import http.client
import itertools
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.fixtures.commands import answer, refused, succeed
from tests.fixtures.commands import run as printed
from tests.fixtures.fails import fails
from tests.fixtures.killing import tree
from tests.fixtures.slow import SLOW, slow_but
from tests.fixtures.tables import each
from tests.runs.conftest import forge_record
from tests.runs.stored import (
    BUCKET,
    contents,
    described,
    digest,
    flip,
    pull,
    push,
    s3_environment,
    s3_server,
    write_run,
)
from trtcal.documents import canonical_json, digest_bytes, digest_file
from trtcal.errors import GateFailed, InputError, ResourceError
from trtcal.runs.statement import STATEMENT
from trtcal.wings.fleet.store.location import open_location
from trtcal.wings.fleet.store.objects import CorruptedError, MissingError, Objects, path_of
from trtcal.wings.fleet.store.origin import digest_wanted, find_origin
from trtcal.wings.fleet.store.record import Filter, check_names, record_of
from trtcal.wings.fleet.store.store import ArtifactStore, run_path
from trtcal.wings.fleet.store.upkeep import collect_garbage, verify_store

NOW, DAY = timedelta(0), timedelta(hours=24)


@pytest.fixture(scope="module")
def server():
    with s3_server() as address:
        yield address


@pytest.fixture
def s3(server, monkeypatch):
    for name, value in s3_environment(server).items():
        monkeypatch.setenv(name, value)
    return server


@pytest.fixture(params=slow_but(["folder", "memory", "s3"], "folder", "memory"))
def url(request, tmp_path):
    """Return the address of a new store of each kind."""
    name = f"{tmp_path.name}-{time.monotonic_ns()}"
    if request.param == "s3":
        request.getfixturevalue("s3")
        return f"s3://{BUCKET}/{name}/store"
    return str(tmp_path / "store") if request.param == "folder" else f"memory://{name}"


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path / "run")


@pytest.fixture
def place(tmp_path):
    return tmp_path / "store"


@pytest.fixture
def store(place):
    return ArtifactStore.make(str(place))


def engine(run):
    return next(run.glob("builds/*/engine.onnx"))


def is_whole(store):
    found = verify_store(store)
    return not (found.problems or found.orphans)


def orphan(store, tmp_path, text="of nobody"):
    """Store an object that no run has; return its digest."""
    path = tmp_path / "orphan"
    path.write_text(text)
    store.objects.add(path, digest(text), DAY)
    return digest(text)


@pytest.mark.parametrize("url", ["folder", "memory", "s3"], indirect=True)
def test_a_run_comes_back_as_it_was(url, run, tmp_path):
    store = ArtifactStore.make(url)
    pushed = push(store, run)
    assert pushed.is_new
    assert len(pushed.new) == len(tree(run))
    pull(store, store.record(pushed.record.identity), tmp_path / "back")
    assert tree(tmp_path / "back") == tree(run)
    again = push(store, run)
    assert (again.is_new, len(again.new), len(store.runs())) == (False, 0, 1)
    assert again.record.digest == pushed.record.digest


def test_files_that_runs_have_in_common_are_stored_once(url, run, tmp_path):
    store = ArtifactStore.make(url)
    push(store, run)
    second = write_run(tmp_path / "second", number=2)
    assert digest_file(run / "run.json") == (common := digest_file(second / "run.json"))
    assert push(store, second).new == set(described(second).subjects.values()) - {common}


def test_runs_are_found_by_what_they_are_the_newest_first(url, tmp_path):
    store = ArtifactStore.make(url)
    pushed = {}
    for number in (3, 1, 2):
        facts = {"model": f"model {number}", "word": "SHIP" if number > 1 else "DO NOT SHIP"}
        run = write_run(tmp_path / str(number), number, commit=f"{number}" * 40, **facts)
        pushed[number] = push(store, run, tags=[f"team=t{number % 2}"]).record
    model = digest("model 2").removeprefix("sha256:")

    def found(last=None, **wanted):
        records, damaged = store.records(Filter(**wanted), last)
        assert not damaged
        return [next(n for n, one in pushed.items() if one.digest == r.digest) for r in records]

    assert found() == [3, 2, 1]
    assert found(last=2) == [3, 2]
    assert found(verdict="ship") == [3, 2]
    assert found(tags=("team=t1",)) == [3, 1]
    assert found(tags=("team=t1",), verdict="SHIP") == [3]
    assert found(commit="22") == [2]
    assert found(model=model[:10]) == [2]
    assert found(model="digits") == [3, 2, 1]
    assert found(target="sm89") == []
    assert found(name="other") == []


def test_tags_are_given_and_taken(url, run):
    store = ArtifactStore.make(url)
    record = push(store, run, tags=["team=vision", "team=vision"]).record
    store.tag(record.digest, ["stage=prod"])
    assert store.record(record.digest).tags == ("stage=prod", "team=vision")
    store.untag(record.digest, ["team=vision", "never=there"])
    assert store.record(record.identity).tags == ("stage=prod",)


def test_a_runs_own_tags_are_listed_beside_those_of_the_store(store, place, tmp_path, capsys):
    run = write_run(tmp_path / "run", cost={"tags": {"team": "A b"}})
    push(store, run, tags=["stage=prod"])
    listed = ["store", "list", "--store", place]
    for tag, count in (("team=A b", 1), ("stage=prod", 1), ("team=B", 0)):
        assert len(answer(capsys, *listed, "--tag", tag)) == count
    assert "team=A b, stage=prod" in succeed(capsys, *listed)
    refused(capsys, *listed, "--tag", "team")


@each("tag", ["team", "=x", "a=", "a=b/c", "../x=y", "a=b\nc", "a b=c", "é=x"])
def test_a_tag_that_is_none_is_refused_before_anything_is_stored(run, tag):
    store = ArtifactStore.make("memory://tags")
    with fails(InputError, repr(tag)):
        push(store, run, tags=[tag])
    assert not list(store.objects.listed())


def test_a_corrupted_object_is_found_and_never_handed_out(store, place, tmp_path, run, capsys):
    record = push(store, run).record
    assert not verify_store(store).problems
    wanted = digest_file(engine(run))
    flip(place / path_of(wanted))
    (problem,) = verify_store(store).problems
    assert (problem.what, problem.problem) == (wanted, "corrupted")
    assert problem.needed_by == (f"{record.identity}/{engine(run).relative_to(run)}",)
    with pytest.raises(CorruptedError):
        pull(store, record, tmp_path / "back")
    assert not (tmp_path / "back").exists()
    status, out, err = printed(capsys, "store", "verify", "--store", place)
    assert (status, wanted in out, wanted in err) == (1, True, False)
    push(store, run, rewrite=True)
    assert not verify_store(store).problems


def test_an_object_of_another_size_is_replaced_by_the_next_push(store, place, run):
    push(store, run)
    path = place / path_of(digest_file(engine(run)))
    path.write_bytes(path.read_bytes()[:-1])
    push(store, run)
    assert not verify_store(store).problems


def test_a_missing_object_is_named_and_an_orphan_is_not_wrong(url, run, tmp_path):
    store = ArtifactStore.make(url)
    record = push(store, run).record
    wanted = digest_file(engine(run))
    store.objects.delete(wanted)
    alone = orphan(store, tmp_path)
    found = verify_store(store)
    assert [(one.what, one.problem) for one in found.problems] == [(wanted, "missing")]
    assert found.orphans == (alone,)
    with fails(MissingError, wanted):
        pull(store, record, tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_a_statement_that_was_changed_is_named_and_stops_the_collection(
    store, place, tmp_path, run, capsys
):
    record = push(store, run).record
    flip(place / run_path(record))
    alone = orphan(store, tmp_path)
    (problem,) = verify_store(store).problems
    assert "corrupted" in problem.problem
    with pytest.raises(CorruptedError):
        store.record(record.digest)
    with pytest.raises(InputError):
        collect_garbage(store, NOW)
    assert store.objects.find(alone)
    assert "corrupted" in printed(capsys, "store", "list", "--store", place)[2]
    push(store, run)
    assert not verify_store(store).problems


def test_garbage_collection_keeps_runs_and_what_is_young(url, run, tmp_path):
    store = ArtifactStore.make(url)
    push(store, run)
    alone = orphan(store, tmp_path)
    time.sleep(1.1)  # S3 counts in seconds
    assert collect_garbage(store, DAY).young == 1
    assert collect_garbage(store, NOW, dry=True).objects == (alone,)
    assert store.objects.find(alone)
    assert collect_garbage(store, NOW).objects == (alone,)
    assert not store.objects.find(alone)
    assert is_whole(store)
    assert not list(store.names("gc/"))


def test_an_old_object_is_written_again_by_a_push_so_that_no_collection_takes_it(store, place, run):
    wanted = digest_file(engine(run))
    store.objects.add(engine(run), wanted, DAY)
    path, long_ago = place / path_of(wanted), time.time() - 7 * 3600
    os.utime(path, (long_ago, long_ago))
    push(store, run)
    assert time.time() - path.stat().st_mtime < 3600


def test_a_push_that_a_collection_overtakes_stores_what_was_taken(store, run):
    """A collection takes an object between the push's look at it and its run's becoming visible."""
    wanted = digest_file(engine(run))

    class Overtaken(ArtifactStore):
        def tag(self, found, tags):
            self.objects.delete(wanted)

    assert wanted in push(Overtaken(store.location), run).new
    assert not verify_store(store).problems


def test_a_collection_says_which_run_lost_an_object_to_it(store, run):
    """A push makes its run visible after a collection has read the runs."""
    store.objects.add(engine(run), digest_file(engine(run)), DAY)
    time.sleep(0.01)
    record = described(run)

    class Meanwhile(ArtifactStore):
        def records(self, *wanted):
            found = super().records(*wanted)
            store.add(record)
            return found

    with fails(GateFailed, record.identity):
        collect_garbage(Meanwhile(store.location), NOW)


def test_an_object_that_was_written_again_after_it_was_listed_is_kept(store, tmp_path):
    alone = orphan(store, tmp_path)

    class Stale(Objects):
        def listed(self):
            yield from (replace(one, modified=one.modified - 2 * DAY) for one in super().listed())

    store.objects = Stale(store.location)
    assert collect_garbage(store, DAY).objects == ()
    assert store.objects.find(alone)


def test_unfinished_files_of_killed_writers_go_when_they_are_old(store, place, run):
    push(store, run)
    left = place / f"{path_of(digest('x'))}#1"
    left.parent.mkdir(parents=True, exist_ok=True)
    left.write_bytes(b"half")
    assert (collect_garbage(store, DAY).unfinished, left.exists()) == (0, True)
    os.utime(left, (0, 0))
    assert (collect_garbage(store, DAY).unfinished, left.exists()) == (1, False)
    assert not verify_store(store).problems


def test_a_large_file_goes_up_in_parts(url, tmp_path):
    path = tmp_path / "large"
    path.write_bytes(contents("large", 12 << 20))
    wanted = digest_file(path)
    objects = replace(ArtifactStore.make(url).objects, single=1 << 20, part=5 << 20)
    assert objects.add(path, wanted, DAY)
    assert not objects.add(path, wanted, DAY)
    found = objects.required(wanted)
    assert (found.size, objects.check(found)) == (12 << 20, None)
    objects.copy(found, tmp_path / "back")
    assert digest_file(tmp_path / "back") == wanted


@SLOW
def test_s3_has_a_large_file_in_as_many_parts_as_were_asked_for(s3, tmp_path):
    import obstore

    path = tmp_path / "large"
    path.write_bytes(contents("parts", 11 << 20))
    objects = Objects(open_location(f"s3://{BUCKET}/parts"), single=1 << 20, part=5 << 20)
    objects.add(path, digest_file(path), DAY)
    found = obstore.head(objects.location.objects, path_of(digest_file(path)))
    assert found["e_tag"].endswith('-3"')


@pytest.mark.parametrize("single", [1 << 20, 16 << 20])
def test_a_file_that_changes_while_it_is_pushed_is_not_stored(url, tmp_path, single):
    path = tmp_path / "file"
    path.write_bytes(contents("before", 6 << 20))
    wanted = digest_file(path)
    path.write_bytes(contents("after", 6 << 20))
    objects = replace(ArtifactStore.make(url).objects, single=single)
    with fails(InputError, str(path)):
        objects.add(path, wanted, DAY)
    assert objects.find(wanted) is None
    assert not list(objects.listed())


def test_a_run_that_is_not_as_it_was_left_is_not_pushed(run):
    store = ArtifactStore.make("memory://changed")
    flip(engine(run))
    with fails(InputError, engine(run).name):
        push(store, run)
    assert not list(store.objects.listed())


def test_links_and_files_of_others_in_a_run_are_not_pushed(run, tmp_path):
    (run / "secret.txt").write_text("of the user")
    (run / "builds" / ".hidden").write_text("of the user")
    assert not {"secret.txt", "builds/.hidden"} & set(described(run).subjects)
    (run / "models").mkdir()
    link = run / "models" / "link.onnx"
    link.symlink_to("/etc/passwd")
    with fails(InputError, str(link)):  # whether the run wrote it is not known
        described(run)
    forge_record(run)
    assert "models/link.onnx" not in described(run).subjects


def test_a_pull_replaces_a_run_and_nothing_else(run, tmp_path):
    store = ArtifactStore.make("memory://replaced")
    record = push(store, run).record
    back = write_run(tmp_path / "back", number=5, engines=2)
    (back / "notes.txt").write_text("of the user")
    pull(store, record, back)
    assert tree(back) == {**tree(run), "notes.txt": b"of the user"}
    with fails(InputError, "notes.txt"):
        pull(store, replace(record, subjects={"notes.txt": digest("x")}), back)
    other = tmp_path / "other"
    other.mkdir()
    (other / "file").write_text("of the user")
    with fails(InputError, "other"):
        pull(store, record, other)


HOSTILE = [
    *("../run.json", "/etc/passwd", "builds/../../x", "builds//x", "builds/./x", "builds\\..\\x"),
    *("C:/x", "builds/a:stream", "builds/nul", "builds/COM1.onnx", "builds/x.", "builds/x "),
    *("builds/.trtcal-commit/changes.json", ".trtcal-commit", "builds/a\nb"),
    *("builds/\u202egnp.onnx", "builds/" + 300 * "a", "builds" + 20 * "/a", ""),
]


def with_names(run, *names):
    """Read a run's statement in which files have other names."""
    record = described(run)
    statement = json.loads(json.dumps(record.statement))
    for one, name in zip(statement["subject"], names, strict=False):
        one["name"] = name
    return record_of(statement, record.digest)


@each("name", HOSTILE)
def test_a_hostile_name_in_a_statement_is_refused(run, name):
    with pytest.raises(ValueError, match=re.escape(repr(name))):
        with_names(run, name)


@each("names", [("models/a", "models/a"), ("models/a", "models/A"), ("models/a", "models/a/b")])
def test_names_that_would_be_one_file_are_refused(run, names):
    with pytest.raises(ValueError, match="models/"):
        check_names(names)
    with pytest.raises(ValueError, match="models/"):
        with_names(run, *names)


VALUES = [
    *(None, True, -1, 1e300, 10**400, "", "x", "9999-12-31T23:59:59-23:59"),
    *([], [1], {}, {"a": 1}),
]


def changed(value, rng):
    """Return a JSON value in which something inside is another."""
    if isinstance(value, (dict, list)) and value and rng.random() < 0.9:
        keys = list(value) if isinstance(value, dict) else range(len(value))
        key = rng.choice(keys)
        if rng.random() < 0.1:
            copy = dict(value) if isinstance(value, dict) else list(value)
            del copy[key]
            return copy
        pairs = [(one, changed(value[one], rng) if one == key else value[one]) for one in keys]
        return dict(pairs) if isinstance(value, dict) else [one for _, one in pairs]
    return rng.choice(VALUES)


def test_a_mutated_statement_is_a_run_or_damaged_and_nothing_else(run):
    store, whole = ArtifactStore.make("memory://mutated"), described(run).statement
    rng, names = random.Random(0), set()  # noqa: S311
    for _ in range(500):
        data = canonical_json(changed(whole, rng))
        digits = digest_bytes(data).removeprefix("sha256:")
        names.add(f"runs/20261102T100000Z-{digits}.json")
        store.location.put(f"runs/20261102T100000Z-{digits}.json", data)
    records, damaged = store.records()
    assert len(records) + len(damaged) == len(names)
    assert records
    assert len(damaged) > len(names) / 3
    json.dumps([one.to_document() for one in records])
    with pytest.raises(InputError):
        collect_garbage(store, NOW)


def test_the_lineage_is_an_in_toto_statement(run):
    record = described(run)
    statement = record.statement
    assert statement["_type"] == STATEMENT
    subjects = {one["name"]: one["digest"]["sha256"] for one in statement["subject"]}
    assert subjects == {
        path.relative_to(run).as_posix(): digest_file(path).removeprefix("sha256:")
        for path in run.rglob("*")
        if path.is_file()
    }
    materials = {one["name"] for one in statement["predicate"]["materials"]}
    wanted = {"model", "calibration data", "evaluation data", "configuration", "plan of int8"}
    assert wanted <= materials
    assert record_of(statement, record.digest) == record


def test_an_engine_leads_back_to_all_that_it_was_made_of(url, tmp_path):
    store = ArtifactStore.make(url)
    for number, word, p50 in ((1, "SHIP", 1.0), (2, "DO NOT SHIP", 9.0), (3, "SHIP", 2.0)):
        run = write_run(tmp_path / str(number), number, word=word, p50=p50, commit=40 * str(number))
        push(store, run)
    push(store, write_run(tmp_path / "other", 4, name="other", model="other"))
    found = find_origin(store, digest_wanted(str(engine(tmp_path / "3"))))
    assert found.names == ("builds/int8-0-cpu/engine.onnx",)
    assert found.record.model == digest("sha256 of a model")
    assert found.record.materials["calibration data"] == digest("data")
    assert found.record.configuration.commit == 40 * "3"
    assert found.record.run.verdict == "SHIP"
    assert found.build.calibration == digest("ranges")
    assert (found.build.backend, found.build.backend_version) == ("onnxruntime", "1.32.0")
    assert found.last_good.configuration.commit == 40 * "1"
    changed = {one.figure: (one.before, one.after) for one in found.changed.changed}
    assert changed["latency_p50"] == (1.0, 2.0)
    assert found.changed.inputs["commit"] == (40 * "1", 40 * "3")
    first = find_origin(store, digest_file(engine(tmp_path / "1"))[:20])
    assert first.last_good is None
    assert first.changed is None


def test_a_digest_of_nothing_and_one_of_several_files_are_refused(run):
    store = ArtifactStore.make("memory://digests")
    push(store, run)
    with fails(MissingError, digest("nothing")):
        find_origin(store, digest("nothing"))
    with pytest.raises(InputError):
        find_origin(store, "sha256:")
    for text in ("abc", "a" * 300, "/" + "x" * 5000):
        with fails(InputError, repr(text), hint="sha256:"):
            digest_wanted(text)


@pytest.fixture
def unconditional(s3, monkeypatch):
    """Stand in front of the server and leave out the condition of put-if-absent."""
    host = s3.removeprefix("http://")

    class Proxy(BaseHTTPRequestHandler):
        def handle_any(self):
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {k: v for k, v in self.headers.items() if k.lower() != "if-none-match"}
            seen.append(len(self.headers.items()) - len(headers))
            with contextlib.closing(http.client.HTTPConnection(host)) as connection:
                connection.request(self.command, self.path, body, headers)
                answer = connection.getresponse()
                data = answer.read()
            self.send_response(answer.status)
            length = answer.headers["Content-Length"] if self.command == "HEAD" else str(len(data))
            for name in ("ETag", "Last-Modified", "Content-Type", "Content-Range"):
                if answer.headers[name]:
                    self.send_header(name, answer.headers[name])
            self.send_header("Content-Length", length)
            self.end_headers()
            self.wfile.write(data)

        def __getattr__(self, name):
            return self.handle_any if name.startswith("do_") else super().__getattribute__(name)

        def log_message(self, *words):
            pass

    seen: list[int] = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as proxy:
        thread = threading.Thread(target=proxy.serve_forever)
        thread.start()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.server_port}")
        yield seen
        proxy.shutdown()
        thread.join()


@SLOW
def test_on_a_server_that_ignores_put_if_absent_a_run_is_there_once(unconditional, run, tmp_path):
    store = ArtifactStore.make(f"s3://{BUCKET}/{tmp_path.name}")
    first, second = push(store, run), push(store, run)
    assert sum(unconditional) > len(first.new)
    assert second.record.digest == first.record.digest
    assert len(store.runs()) == 1
    assert not verify_store(store).problems


def push_many(url, runs, variables, killed_after):
    """Push runs, in a process of its own, which is killed after so many files of them all, if ever."""
    os.environ.update(variables)
    store, files = ArtifactStore.make(url), itertools.count(1)

    def count(_):
        if next(files) == killed_after:
            os.kill(os.getpid(), signal.SIGKILL)

    for run in runs:
        push(store, run, advance=count)


def start(url, runs, variables, killed_after=None):
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=push_many, args=(url, runs, variables, killed_after))
    process.start()
    return process


@SLOW
@pytest.mark.parametrize("kind", ["folder", "s3"])
def test_many_processes_that_are_killed_between_lose_nothing(kind, server, tmp_path, monkeypatch):
    """Four processes push the same runs; two of them are killed, and pushed again."""
    variables = s3_environment(server)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    url = str(tmp_path / "store") if kind == "folder" else f"s3://{BUCKET}/{tmp_path.name}"
    runs = [write_run(tmp_path / f"run {n}", n, engines=3) for n in range(8)]
    store = ArtifactStore.make(url)
    killed = [start(url, runs[::step], variables, killed_after=9) for step in (1, -1)]
    whole = [start(url, runs[::step], variables) for step in (1, -1)]
    for process in (*killed, *whole):
        process.join()
        assert not verify_store(store).problems
    assert [process.exitcode for process in (*killed, *whole)] == [-9, -9, 0, 0]
    assert is_whole(store)
    found = verify_store(store)
    assert found.runs == len(runs)
    assert found.objects == len({d for one in runs for d in described(one).subjects.values()})


@pytest.mark.parametrize("stored", range(6))
def test_a_push_that_ends_before_its_last_write_leaves_no_run_that_is_half_there(
    store, run, stored
):
    for name, wanted in list(described(run).subjects.items())[:stored]:
        store.objects.add(run / name, wanted, DAY)
    assert store.records() == ([], [])
    assert len(verify_store(store).orphans) == stored
    assert len(push(store, run).new) == 5 - stored
    assert not verify_store(store).orphans


def test_a_store_is_recognized_and_nothing_else_is_taken_for_one(tmp_path, capsys):
    listed = ["store", "list", "--store"]
    assert str(tmp_path / "none") in refused(capsys, *listed, tmp_path / "none")
    assert not (tmp_path / "none").exists()
    assert str(tmp_path) in refused(capsys, *listed, tmp_path)
    (tmp_path / "trtcal-store.json").write_text('{"kind": "trtcal-store", "format": 9}')
    assert "format 9" in refused(capsys, *listed, tmp_path)


SECRET = "not-to-be-shown"  # noqa: S105


@each(
    "url",
    [
        *(f"s3://key:{SECRET}@bucket/x", f"s3://bucket/x?X-Amz-Security-Token={SECRET}"),
        *(f"s3://bucket/x#{SECRET}", "s3://B!/x", "s3://bucket/../x", "gs://bucket/x"),
        "s3://[::1/x",
    ],
)
def test_a_url_that_is_no_store_is_refused_and_no_secret_of_it_shown(url, run, capsys):
    status, out, err = printed(capsys, "store", "push", run, "--store", url)
    assert (status, SECRET in out + err, "hint:" in err) == (2, False, True)


@SLOW
def test_a_bucket_that_is_missing_and_keys_are_errors_of_one_line(s3, run, capsys, monkeypatch):
    listed = ("store", "list", "--store")
    assert "no-such-bucket" in refused(
        capsys, "store", "push", run, *listed[2:], "s3://no-such-bucket"
    )
    assert "no-such-bucket" in refused(capsys, *listed, "s3://no-such-bucket/x")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    err = refused(capsys, *listed, "s3://bucket/x", status=4)
    assert ("s3://bucket/x" in err, "a-secret-of-the-test" in err) == (True, False)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://192.0.2.1")
    assert "192.0.2.1" in refused(capsys, *listed, "s3://bucket/x")


@SLOW
@each(
    "name, value",
    [
        ("AWS_ENDPOINT_URL", "not the address"),
        ("AWS_ENDPOINT_URL", f"https://key:{SECRET}@host"),
        ("AWS_REGION", "no region"),
        ("AWS_ACCESS_KEY_ID", "testing\n"),
    ],
)
def test_a_variable_that_is_malformed_is_an_error(s3, capsys, name, value):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(name, value)
        err = refused(capsys, "store", "list", "--store", f"s3://{BUCKET}/x")
    assert ("AWS_" in err, SECRET in err) == (True, False)


def test_a_folder_that_cannot_be_written_is_an_error_of_one_line(store, place, run, capsys):
    (place / "objects").write_text("no folder")
    within = place / "objects" / "x"
    err = refused(capsys, "store", "push", run, "--store", within, status=4)
    assert err.startswith("error: ")
    assert "Not a directory" in err
    with pytest.raises(ResourceError):
        push(store, run)


def mounted(place, options, script):
    """Run a shell script beside a small file system at `place`; skip where none can be mounted."""
    place.mkdir()
    unshare, mount = shutil.which("unshare"), f"mount -t tmpfs -o {options} none {place}"
    if not unshare or subprocess.run([unshare, "-Urm", "sh", "-c", mount]).returncode:
        pytest.skip("no file system can be mounted here")
    program = f"{sys.executable} -m trtcal.cli.main"
    script = f"{mount} && {script.replace('trtcal', program)}"
    command = [unshare, "-Urm", "sh", "-c", script]
    return subprocess.run(command, capture_output=True, text=True)


@SLOW
@pytest.mark.parametrize(
    ("options", "says"),
    [("size=24k", "No space left on device"), ("ro", "Read-only file system")],
)
def test_a_full_disk_or_one_that_is_read_only_leaves_no_run(tmp_path, options, says):
    run, place = write_run(tmp_path / "run", engines=20), tmp_path / "disk"
    script = f"trtcal store push {run} --store {place}/st; echo $?; ls {place}/st/runs"
    done = mounted(place, options, script)
    assert done.stdout == "4\n"
    assert done.stderr.splitlines()[0] == f"error: {place}/st: {says}"


def test_the_commands_of_a_store_in_order(tmp_path, run, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trtcal.toml").write_text('project = "mine"\n[store]\nurl = "kept"\n')

    def said(*words):
        return answer(capsys, "store", *words)

    pushed = said("push", run, "--tag", "team=vision")
    assert pushed["is_new"]
    assert (tmp_path / "kept" / "runs").is_dir()
    (listed,) = said("list", "--project", "mine", "--tag", "team=vision", "--verdict", "SHIP")
    identity = listed["digest"].removeprefix("sha256:")[:12]
    assert said("show", identity)["statement"] == listed["statement"]
    assert said("tag", identity, "stage=prod")["tags"] == ["stage=prod", "team=vision"]
    assert said("pull", identity, "-o", "back")["bytes"] == sum(map(len, tree(run).values()))
    assert tree(tmp_path / "back") == tree(run)
    assert said("origin", engine(run))["run"]["digest"] == listed["digest"]
    assert said("verify")["problems"] == []
    assert said("gc")["objects"] == []
    for words in ("list", "verify", "gc"):
        succeed(capsys, "store", words)
    assert identity in succeed(capsys, "store", "show", identity)
    assert "onnxruntime 1.32.0 for cpu" in succeed(capsys, "store", "origin", engine(run))
    assert identity in succeed(capsys, "store", "push", run)
    status, _, err = printed(capsys, "store", "pull", identity, "-o", "again")
    assert (status, "--trust" in err) == (0, True)
    refused(capsys, "store", "show", "abcdef")


def test_without_the_package_the_extra_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "obstore", None)
    assert "pip install 'trtcal[store]'" in refused(capsys, "store", "list", "--store", tmp_path)
