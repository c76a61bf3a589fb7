"""Tags of base images get the digests that a registry names, all of them or none."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from tests.release.lock import ROOT
from tests.release.pin import IMAGE, main

DIGEST = f"sha256:{'ab' * 32}"


class Registry(BaseHTTPRequestHandler):
    """Answers as the OCI distribution specification says, after a token for everybody."""

    def do_HEAD(self):
        place = f"http://127.0.0.1:{self.server.server_port}/token"
        if self.headers["Authorization"] != "Bearer free":
            self.send_response(401)
            self.send_header("WWW-Authenticate", f'Bearer realm="{place}",service="r",scope="pull"')
        elif self.path == "/v2/library/python/manifests/3.12-slim":
            self.send_response(200)
            self.send_header("Docker-Content-Digest", DIGEST)
        else:
            self.send_response(404)
        self.end_headers()

    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"token": "free"}).encode())

    def log_message(self, *_):
        """Print nothing."""


@pytest.fixture
def host():
    with HTTPServer(("127.0.0.1", 0), Registry) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


def dockerfile(path, host, tag, digest=""):
    path.write_text(f"ARG PYTHON={host}/library/python:{tag}{digest}\nFROM ${{PYTHON}}\n")
    return path


@pytest.mark.parametrize("before", ["", f"@sha256:{'0' * 64}"])
def test_a_tag_gets_its_digest(tmp_path, host, before):
    file = dockerfile(tmp_path / "Dockerfile", host, "3.12-slim", before)
    assert main([file]) == 0
    assert (
        file.read_text()
        == f"ARG PYTHON={host}/library/python:3.12-slim@{DIGEST}\nFROM ${{PYTHON}}\n"
    )


@pytest.mark.parametrize("case", ["no such tag", "no registry"])
def test_where_a_registry_does_not_answer_no_file_is_changed(tmp_path, host, capsys, case):
    files = [
        dockerfile(tmp_path / "Dockerfile", host, "3.12-slim"),
        dockerfile(
            tmp_path / "Dockerfile.b", host if case == "no such tag" else "127.0.0.1:9", "3.13"
        ),
    ]
    before = [file.read_text() for file in files]
    assert main(files) == 3
    assert "no digest for Dockerfile.b" in capsys.readouterr().out
    assert [file.read_text() for file in files] == before


def test_every_base_image_can_be_pinned():
    for file in (ROOT / "docker").glob("Dockerfile*"):
        text = file.read_text()
        bases = {line.split()[1] for line in text.splitlines() if line.startswith("FROM")}
        names = {
            f"${{{image[1].removeprefix('ARG ').rstrip('=')}}}" for image in IMAGE.finditer(text)
        }
        assert bases == names
