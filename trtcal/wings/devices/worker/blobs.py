"""Files by content: a blob has its name only once all of it is there and its digest is right."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
from typing import Any

from .frames import BLOCK_BYTES, Fault, full_disk, whole

DIGEST = re.compile(r"sha256:[0-9a-f]{64}\Z")
GET_BYTES = 1 << 24
BLOB_BYTES = 1 << 40


class Blobs:
    """The files of a folder, by digest; what is not whole yet ends in `.part`."""

    def __init__(self, folder: str) -> None:
        self.folder = os.path.join(folder, "blobs")

    def path(self, digest: Any) -> str:
        """Return where a blob is, or would be."""
        if not isinstance(digest, str) or not DIGEST.match(digest):
            raise Fault("input", "a digest is sha256: and 64 hexadecimal digits")
        return os.path.join(self.folder, digest[7:])

    def existing(self, digest: Any) -> str:
        """Return where a blob is; an input error if the device does not have it."""
        path = self.path(digest)
        if not os.path.isfile(path):
            raise Fault("input", f"the device does not have {digest}", "send it again")
        return path

    def put(self, request: dict[str, Any], data: bytes) -> dict[str, Any]:
        """Write bytes at an offset; return how many are there (all: the digest is right too).

        An offset after the end of what is there writes nothing.
        """
        path, total = self.path(request.get("digest")), whole(request, "total", BLOB_BYTES)
        if os.path.isfile(path):
            return {"have": total}
        os.makedirs(self.folder, exist_ok=True)
        with open(path + ".part", "ab+") as part:
            fcntl.flock(part, fcntl.LOCK_EX)
            if os.path.isfile(path):  # who had the lock has finished it
                return {"have": total}
            have = os.fstat(part.fileno()).st_size
            if total - have > shutil.disk_usage(self.folder).free:
                raise full_disk(self.folder, total)
            if whole(request, "offset", BLOB_BYTES) == have:
                part.write(data)
                part.flush()
                have += len(data)
            if have >= total:
                self._finish(part, path, str(request["digest"]))
                have = total
        return {"have": have}

    def _finish(self, part: Any, path: str, digest: str) -> None:
        os.fsync(part.fileno())
        if digest_of(part.name) != digest:
            os.unlink(part.name)
            raise Fault("busy", f"what arrived does not have the digest {digest}")
        os.replace(part.name, path)

    def get(self, request: dict[str, Any]) -> bytes:
        """Return `length` bytes from `offset`, fewer at the end."""
        with open(self.existing(request.get("digest")), "rb") as file:
            file.seek(whole(request, "offset", BLOB_BYTES))
            return file.read(whole(request, "length", GET_BYTES))

    def keep(self, path: str) -> dict[str, Any]:
        """Move a file that a job wrote to its blob; return digest and size in bytes."""
        digest, size = digest_of(path), os.path.getsize(path)
        os.makedirs(self.folder, exist_ok=True)
        with open(path, "rb") as file:
            os.fsync(file.fileno())
        os.replace(path, self.path(digest))
        return {"digest": digest, "size": size}


def digest_of(path: str) -> str:
    """Return the digest of a file."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(BLOCK_BYTES), b""):
            digest.update(block)
    return "sha256:" + digest.hexdigest()
