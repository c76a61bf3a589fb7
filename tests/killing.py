"""Processes that are killed at a chosen change of a file, and what they leave."""

import os
import signal
import sys
import traceback
import warnings

CHANGES = ("os.rename", "os.mkdir", "os.rmdir", "os.remove")
"""Audit events of Python's own functions that change files."""


def forked(work, wait=True):
    """Do `work` in a forked process; return its exit status, or its number if it is not waited for."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
        child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) if wait else child
    status = 1
    try:
        work()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def killed_at(number, work):
    """Do `work` in a forked process, killed before its change `number`; return whether it was."""
    seen = 0

    def count(event, arguments):
        nonlocal seen
        is_change = event in CHANGES or (event == "open" and arguments[2] & os.O_CREAT)
        seen += bool(is_change)
        if is_change and seen > number:
            os.kill(os.getpid(), signal.SIGKILL)

    def work_until_then():
        sys.addaudithook(count)
        work()

    status = forked(work_until_then)
    assert status in (0, -signal.SIGKILL)
    return status != 0


def tree(folder):
    """Return the bytes of every file in a folder, hidden ones too, and None for empty folders."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
        if path.is_file() or not any(path.iterdir())
    }
