"""Comments of a pull request (GitHub) and notes of a merge request (GitLab), on the loopback."""

import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlparse

PAGE = 100


@dataclass
class Forge:
    """Comments, and the requests that came.

    With `refuses`, writing is answered with this status. `login` owns the token; None is the token of a
    workflow, which cannot ask who it is.
    """

    comments: list[dict[str, Any]] = field(default_factory=list)
    requests: list[tuple[str, str, str]] = field(default_factory=list)
    refuses: int = 0
    login: str | None = None
    url: str = ""

    def add(self, body: str, login: str = "github-actions[bot]", kind: str = "Bot") -> None:
        """Add a comment of somebody."""
        user = {"login": login, "type": kind}
        note = {"author": {"username": login}, "system": False}
        self.comments.append({"id": len(self.comments) + 1, "body": body, "user": user, **note})

    def written(self) -> list[str]:
        """Return the requests that wrote something, as `METHOD path`."""
        return [f"{method} {path}" for method, path, _ in self.requests if method != "GET"]


class Handler(BaseHTTPRequestHandler):
    """Answers as the two APIs do, for one project."""

    forge: Forge

    def _answer(self, status: int, document: object) -> None:
        data = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _body(self) -> str:
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        if "json" in (self.headers.get("Content-Type") or ""):
            return str(json.loads(raw)["body"])
        return parse_qs(raw).get("body", [""])[0]

    def _handle(self) -> None:
        path, forge = urlparse(self.path), self.forge
        token = self.headers.get("Authorization") or self.headers.get("PRIVATE-TOKEN") or ""
        body = "" if self.command == "GET" else self._body()
        forge.requests.append((self.command, path.path, token))
        if path.path.endswith("/user"):
            name = forge.login or ""
            self._answer(200 if name else 403, {"login": name, "username": name})
        elif self.command == "GET":
            page = int(parse_qs(path.query)["page"][0])
            self._answer(200, forge.comments[(page - 1) * PAGE : page * PAGE])
        elif forge.refuses:
            self._answer(
                forge.refuses, {"message": "::error::Resource not accessible by integration"}
            )
        elif self.command == "POST":
            forge.add(body, **({"login": forge.login, "kind": "User"} if forge.login else {}))
            self._answer(201, forge.comments[-1])
        else:
            number = int(path.path.rpartition("/")[2])
            forge.comments[number - 1]["body"] = body
            self._answer(200, forge.comments[number - 1])

    do_GET = do_POST = do_PATCH = do_PUT = _handle  # noqa: N815 (http.server's names)

    def log_message(self, *arguments: object) -> None:
        """Print nothing."""


@contextmanager
def serving(**settings: Any):
    """Serve an empty pull request, and return what it gets."""
    forge = Forge(**settings)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Own", (Handler,), {"forge": forge}))
    forge.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield forge
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
