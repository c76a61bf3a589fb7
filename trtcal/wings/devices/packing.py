"""The worker as one file, and the program that starts it on a device.

`python3 -c BOOT FOLDER DIGEST SIZE MARK` says "MARK send" where it does not have the worker of that
SHA-256, reads SIZE bytes of it, says "MARK ready" and becomes the worker. MARK tells its lines from
what the start of a shell prints. The file is the same for the same sources: nothing is sent twice.
"""

from __future__ import annotations

import io
import zipfile
from functools import cache
from pathlib import Path

SOURCES = Path(__file__).parent / "worker"
CORE = Path(__file__).parents[2]
BACKENDS = ("__init__.py", "tensorrt_objects.py", "trtexec_words.py")
SHARED = ("__init__.py", "errors.py", *(f"backends/{name}" for name in BACKENDS))
"""What the worker takes along of the package `trtcal`, of which `__init__.py` is empty there."""
PACKAGE = "trtcal_worker"
DATE = (1980, 1, 1, 0, 0, 0)
START = f"import sys\nfrom {PACKAGE}.main import main\nmain(sys.argv[1:])\n"

BOOT = """\
import hashlib, os, sys
folder, digest, size, mark = sys.argv[1:]
def say(text):
    os.write(1, (mark + " " + text + "\\n").encode())
def differs(data):
    return hashlib.sha256(data).hexdigest() != digest
def boot():
    if sys.version_info < (3, 8):
        return say("python %d.%d" % sys.version_info[:2])
    place = os.path.abspath(os.path.expanduser(folder))
    path = os.path.join(place, "worker-" + digest[:16] + ".pyz")
    os.makedirs(place, 0o700, exist_ok=True)
    if os.getuid() not in (0, os.stat(place).st_uid):  # root: in a container
        return say("error folder %s belongs to another user" % place)
    data = b""
    if os.path.isfile(path):
        with open(path, "rb") as file:
            data = file.read()
    if differs(data):
        say("send")
        data = b""
        while len(data) < int(size):
            block = os.read(0, int(size) - len(data))
            if not block:
                return None
            data += block
        if differs(data):
            return say("error the worker arrived damaged")
        with open(path + ".%d.new" % os.getpid(), "wb") as file:
            file.write(data)
        os.replace(file.name, path)
    say("ready")
    os.execv(sys.executable, [sys.executable, "-B", path, place])
try:
    boot()
except OSError as error:
    say("error %s" % error)
"""


@cache
def pack() -> bytes:
    """Return the worker as a zip file that Python runs."""
    buffer, modules = io.BytesIO(), sorted(SOURCES.glob("*.py"))
    files = {f"{PACKAGE}/{path.name}": path for path in modules}
    files |= {f"{CORE.name}/{name}": CORE / name for name in SHARED}
    with zipfile.ZipFile(buffer, "w") as archive:
        _add(archive, "__main__.py", START)
        for name, path in files.items():
            is_empty = path in (CORE / "__init__.py", CORE / "backends" / "__init__.py")
            _add(archive, name, "" if is_empty else path.read_text(encoding="utf-8"))
    return buffer.getvalue()


def _add(archive: zipfile.ZipFile, name: str, text: str) -> None:
    """Add a file with the same date each time."""
    archive.writestr(zipfile.ZipInfo(name, DATE), text, zipfile.ZIP_DEFLATED)
