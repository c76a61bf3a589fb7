"""What a worker says to the process that started it (`child.py`), and reads from it.

Every build starts one, and waits for what it imports: here that is next to nothing.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from trtcal.errors import TrtcalError

REQUEST, ERROR, RAISED = "request.json", "error.txt", "raised.json"


def fail(message: str) -> None:
    """Say in one sentence what went wrong and end."""
    Path(ERROR).write_text(message)
    sys.exit(1)


def raise_in_parent(error: TrtcalError) -> None:
    """End, so that `run_worker` raises this error, or one of its exit status."""
    Path(RAISED).write_text(json.dumps([error.exit_status, error.message, error.hint]))
    sys.exit(1)


def read_request() -> dict[str, Any]:
    """Return the request."""
    request: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    return request
