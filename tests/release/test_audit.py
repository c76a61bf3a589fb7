"""pip-audit's answers become the exit status; the service here is a local one with OSV's interface."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from tests.release.audit import main

LOCK = """
holed==1.0 ; python_full_version < '3.11' \\
    --hash=sha256:aa
holed==2.0 ; python_full_version >= '3.11' \\
    --hash=sha256:bb
whole==3.0 \\
    --hash=sha256:cc
"""
RANGE = {"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "1.5"}]}
HOLE = {
    "id": "PYSEC-2020-1",
    "modified": "2020-01-01T00:00:00Z",
    "details": "",
    "affected": [{"package": {"name": "holed", "ecosystem": "PyPI"}, "ranges": [RANGE]}],
}


class Osv(BaseHTTPRequestHandler):
    """Answers a query as https://google.github.io/osv.dev/post-v1-query/ says."""

    def do_POST(self):
        query = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        asked = (query["package"]["name"], query["version"])
        self.server.asked.append(asked)
        answer = self.server.answers.get(asked, {})
        self.send_response(answer if isinstance(answer, int) else 200)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *_):
        """Print nothing."""


@pytest.fixture
def osv():
    with HTTPServer(("127.0.0.1", 0), Osv) as server:
        server.answers, server.asked = {}, []
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def lock(tmp_path):
    path = tmp_path / "requirements.lock"
    path.write_text(LOCK)
    return path


def audit(lock, port):
    url = f"http://127.0.0.1:{port}/v1/query"
    return main(lock, ["--vulnerability-service", "osv", "--osv-url", url])


def test_every_locked_version_is_asked_for(lock, osv, capsys):
    assert audit(lock, osv.server_port) == 0
    assert sorted(osv.asked) == [("holed", "1.0"), ("holed", "2.0"), ("whole", "3.0")]
    assert capsys.readouterr().out == "audit: 3 locked versions, no known vulnerability\n"


def test_a_known_vulnerability_fails_the_audit(lock, osv, capsys):
    osv.answers["holed", "1.0"] = {"vulns": [HOLE]}
    assert audit(lock, osv.server_port) == 1
    assert capsys.readouterr().out == "audit: holed 1.0: PYSEC-2020-1, fixed in 1.5\n"


def test_a_service_that_breaks_or_is_not_there_is_said_and_has_its_own_status(lock, osv, capsys):
    osv.answers["whole", "3.0"] = 500
    assert audit(lock, osv.server_port) == 3
    assert "not made, the service cannot be reached" in capsys.readouterr().out
    assert audit(lock, 9) == 3  # the port of `discard`, where nobody listens
    assert capsys.readouterr().out.count("\n") == 1


def test_a_lock_that_pip_audit_cannot_read_is_no_missing_service(lock, osv, capsys):
    assert main(lock, ["--vulnerability-service", "nobody"]) == 2
    assert "pip-audit failed" in capsys.readouterr().out
