"""`trtcal history`, its limits, alerts and dashboard."""

import csv
import http.server
import io
import json
import re
import socket
import threading

import pytest

from tests.fixtures.commands import answer, refused, run, succeed
from tests.fixtures.fails import fails
from tests.fixtures.networks import conv_net, samples
from tests.fixtures.tables import each
from tests.runs.runs import report
from trtcal.cli.alerts import _post
from trtcal.cli.main import run_command
from trtcal.errors import BackendError, InputError
from trtcal.runs.history import History
from trtcal.wings.fleet.dashboard import write_dashboard


@pytest.fixture
def db(tmp_path):
    history = History(tmp_path / "h.sqlite")
    for number in range(24):
        late = number >= 20
        history.record(report(number, p50=1.1 if late else 1.0, data=f"sha256:{int(late)}"))
    return tmp_path / "h.sqlite"


def test_runs_are_listed_shown_compared_and_exported(db, capsys):
    base = ("--db", db)
    assert "digits" in succeed(capsys, "history", "list", "--last", "3", *base)
    figures = answer(capsys, "history", "show", "24", *base)["figures"]
    assert figures["int8"]["latency_p50"] == 1.1
    out = succeed(capsys, "history", "diff", "20", "21", *base)
    assert "evaluation data: sha256:0 to sha256:1" in out
    assert "+10.00 %" in out
    text = succeed(capsys, "history", "export", "--format", "csv", *base)
    rows = list(csv.DictReader(io.StringIO(text)))
    assert {row["figure"] for row in rows} >= {"top1", "latency_p50", "size_bytes"}
    assert len({row["run"] for row in rows}) == 24


def test_an_empty_history_says_how_runs_come_into_it(db, tmp_path, capsys):
    status, _, err = run(capsys, "history", "list", "--db", tmp_path / "new.sqlite")
    assert (status, "`trtcal history add FOLDER`" in err) == (0, True)
    status, _, err = run(capsys, "history", "list", "--db", db, "--project", "other")
    assert (status, "digits" in err) == (0, True)


def test_the_history_is_the_one_of_the_configuration_here(db, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trtcal.toml").write_text(f'history = "{db}"\n')
    for command in (["history", "list"], ["history", "cost"]):
        assert "digits" in succeed(capsys, *command)
    assert "digits" not in succeed(capsys, "history", "list", "--db", "other.sqlite")


def test_a_folder_made_stage_by_stage_is_recorded_once(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    conv_net(tmp_path / "net.onnx")
    samples(tmp_path / "data.npz")
    (tmp_path / "work").mkdir()
    add = ["history", "add", "work", "--db", "h.sqlite", "--project", "mine"]
    assert "neither a comparison nor a build" in refused(capsys, *add)
    for words in (
        "calibrate net.onnx --data data.npz -o work/c.json",
        "quantize net.onnx --calibration work/c.json -o work/int8.onnx",
        "compare net.onnx work/int8.onnx --data data.npz -o work/comparison.json",
    ):
        assert run_command(words.split()) == 0
    assert run_command(add) == run_command(add) == 0
    (entry,) = History(tmp_path / "h.sqlite").entries()
    assert (entry.name, entry.folder, entry.variant) == ("mine", "work", "int8")


def test_a_limit_on_change_ends_with_1_and_raises_the_alarm(db, tmp_path, capsys):
    out = tmp_path / "alert.json"
    base = ["history", "check", "--db", db, "--against", "20"]
    succeed(capsys, *base, "--limit", "latency_p50 <= +15%", "--limit", "top1 >= -0.5")
    arguments = [*base, "--limit", "int8: latency_p50 <= +5%", "--alert", f"cat > {out}"]
    assert "int8: latency_p50 is +10 %" in refused(capsys, *arguments, status=1)
    shown = json.loads(out.read_text())
    assert shown["limits"][0]["value"] == pytest.approx(10)
    assert shown["inputs"]["evaluation data"] == ["sha256:0", "sha256:1"]


def test_a_breach_is_posted(db):
    got = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *args):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.handle_request, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/"
    rule = ["--limit", "speedup >= 5", "--webhook", url]
    assert run_command(["history", "check", "--db", str(db), *rule]) == 1
    server.server_close()
    assert got[0]["run"] == 24


@each(
    "words, names",
    [
        ("show 99", ["99"]),
        ("check --limit tops<=1", ["top5", "top1"]),
        ("check --limit kl<=1", ["kl"]),
        ("check --limit top1>=1 --project x", []),
    ],
)
def test_wrong_input_is_one_error(db, capsys, words, names):
    err = refused(capsys, "history", *words.split(), "--db", db)
    assert err.count("error: ") == 1
    assert all(name in err for name in names)


def test_the_dashboard_marks_what_changed_and_what_with_it(db, tmp_path):
    index, page = write_dashboard(History(db), tmp_path / "site")
    html = page.read_text()
    assert "evaluation data: sha256:0 to sha256:1" in html
    assert "int8, median latency: 1 to 1.1" in html
    assert "<strong>Run 21</strong>" in html
    assert "3 figures got worse" not in html.split("Lasting changes")[1]
    assert re.search(r'<th scope="row">21 ', html)
    assert "://" not in html.replace("https://github.com/leeoniya/uPlot", "")
    assert page.name in index.read_text()


def test_the_dashboard_replaces_its_own_pages_and_no_others(db, tmp_path):
    index, page = write_dashboard(History(db), tmp_path / "site")
    assert write_dashboard(History(db), tmp_path / "site") == [index, page]
    page.write_text("<!doctype html><title>My own page")
    before = index.read_bytes()
    index.write_bytes(before + b"as it was")
    with fails(InputError, page.name):
        write_dashboard(History(db), tmp_path / "site")
    assert page.read_text() == "<!doctype html><title>My own page"
    assert index.read_bytes() == before + b"as it was"


@pytest.mark.parametrize(
    "name", ["</svg><script>alert(1)</script>", '"><img src=x>', "a\u202eb\x1b[0m", "../../x"]
)
def test_hostile_names_add_nothing_to_the_page(tmp_path, name):
    plain, hostile = (History(tmp_path / file) for file in ("a", "b"))
    plain.record(report(1))
    hostile.record(report(1, name=name, variant=name + "2"))
    pages = [write_dashboard(one, tmp_path / f"site-{one.path.name}") for one in (plain, hostile)]
    shapes = [[re.findall(r"<[a-z/!][^ >]*", file.read_text()) for file in some] for some in pages]
    assert shapes[0] == shapes[1]
    assert all(file.parent == tmp_path / "site-b" for file in pages[1])
    assert "\u202e" not in pages[1][1].read_text()


def test_a_webhook_of_an_odd_address_or_with_an_odd_answer_is_one_error():
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            connection, _ = server.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(b"nonsense\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        here = f"http://127.0.0.1:{server.getsockname()[1]}/"
        for url in (here, "http://h:abc/", "http://a b/", f"http://{'a' * 70}/", "http://[::1/"):
            with fails(BackendError, url):
                _post(url, {})
        thread.join()
