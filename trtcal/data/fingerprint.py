"""The fingerprint of data: of names, types, shapes and values, never of the files they came from.

Samples are digested one by one, so that parts read by several processes make up the whole.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trtcal.errors import InputError
from trtcal.storage import canonical_json, digest_bytes

Array = npt.NDArray[Any]
Feeds = dict[str, Array]
Labels = npt.NDArray[np.int64]
Digests = npt.NDArray[np.uint8]
"""The SHA-256 of each sample, shape (samples, 32); zeros where it is not known."""


class Fingerprint:
    """The digests of a known number of samples, taken in by parts, in any order."""

    def __init__(self, samples: int) -> None:
        self.digests: Digests = np.zeros((samples, hashlib.sha256().digest_size), np.uint8)

    def add(self, start: int, digests: Digests) -> bool:
        """Take in the digests of samples from `start` on; return False if they contradict."""
        kept = self.digests[start : start + len(digests)]
        if kept.shape != digests.shape:
            return False
        both = kept.any(axis=1) & digests.any(axis=1)
        if (kept[both] != digests[both]).any():
            return False
        kept |= digests  # each row is zeros on one side, or the same on both
        return True

    def gaps(self) -> list[tuple[int, int]]:
        """Return the runs of samples that are not known: the first, and one past the last."""
        unknown = np.flatnonzero(~self.digests.any(axis=1))
        runs = np.split(unknown, np.flatnonzero(np.diff(unknown) > 1) + 1)
        return [(int(run[0]), int(run[-1]) + 1) for run in runs if run.size]

    def digest(self, labels: Labels | None) -> str:
        """Return the digest of all samples and of their labels (int64, or None)."""
        samples = hashlib.sha256(self.digests.data).hexdigest()
        return digest_bytes(canonical_json({"samples": samples, "labels": labels_digest(labels)}))


def digests_of(feeds: Mapping[str, Array]) -> Digests:
    """Return the digest of each sample, over the names, types, shapes and bytes of all inputs."""
    names = sorted(feeds)
    forms = [[name, feeds[name].dtype.str, list(feeds[name].shape[1:])] for name in names]
    begun = hashlib.sha256(canonical_json(forms))
    digests = []
    for sample in zip(*(_bytes(feeds[name]) for name in names), strict=True):
        digest = begun.copy()
        for part in sample:
            digest.update(part)
        digests.append(digest.digest())
    return np.frombuffer(b"".join(digests), np.uint8).reshape(len(digests), -1)


def _bytes(array: Array) -> Digests:
    """Return the bytes of each sample, shape (samples, bytes)."""
    return np.ascontiguousarray(array).reshape(len(array), -1).view(np.uint8)


def labels_digest(labels: Labels | None) -> str | None:
    """Return the digest of labels, None for none."""
    return None if labels is None else digest_bytes(labels.tobytes())


def changed(path: Path, hint: str = "leave the files alone while trtcal reads them") -> InputError:
    """Return the error for data that were not the same in two passes."""
    return InputError(f"data {path} were not the same when read once more", hint)
