"""What a command does about an alert besides its exit status: run a command, post to an address."""

from __future__ import annotations

import json
import subprocess
import tempfile
from typing import Any

from trtcal.cli.options import Options, option
from trtcal.cli.output import note
from trtcal.errors import BackendError, InputError

ALERT_LIMIT_S = 60.0
ALERT_BYTES, ALERT_LINES = 1 << 16, 100  # of what it prints


class AlertOptions(Options):
    """The options of a command that raises an alert."""

    alert: str | None = option(
        "Command to run on an alert, with JSON on its input.", metavar="COMMAND"
    )
    webhook: str | None = option("URL to which an alert is posted as JSON.", metavar="URL")

    def send_alerts(self, document: dict[str, Any]) -> None:
        """Run the command and post to the address, as far as they are given."""
        for send, where in ((_run, self.alert), (_post, self.webhook)):
            if where:
                send(where, document)


def _run(command_line: str, document: dict[str, Any]) -> None:
    """Run the user's own command, which says how it went by its status; what it prints are notes."""
    with tempfile.TemporaryFile() as printed:
        try:
            done = subprocess.run(  # noqa: S602 (the user's own line)
                command_line,
                shell=True,
                input=json.dumps(document).encode(),
                stdout=printed,
                stderr=subprocess.STDOUT,
                timeout=ALERT_LIMIT_S,
            )
        except subprocess.TimeoutExpired:
            note(f"note: the alert {command_line!r} took more than {ALERT_LIMIT_S:.0f} s")
            return
        finally:
            printed.seek(0)
            lines = printed.read(ALERT_BYTES).decode("utf-8", "replace").splitlines()
            note(*lines[:ALERT_LINES], head="alert: ")
    if done.returncode:
        note(f"note: the alert {command_line!r} ended with status {done.returncode}")


def _post(url: str, document: dict[str, Any]) -> None:
    import urllib.request
    from http.client import HTTPException

    if not url.startswith(("https://", "http://")):
        raise InputError(f"{url!r} is not a web address", "give one that begins with https://")
    data = json.dumps(document).encode()
    try:
        request = urllib.request.Request(url, data, {"Content-Type": "application/json"})  # noqa: S310
        urllib.request.urlopen(request, timeout=ALERT_LIMIT_S).close()  # noqa: S310
    except (OSError, ValueError, HTTPException) as error:  # of an odd address, or an odd answer
        hint = "check the address and the network"
        raise BackendError(f"the webhook {url} failed: {error}", hint) from error
