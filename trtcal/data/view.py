"""A part of a dataset, as a dataset: its samples from one number up to another."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from trtcal.data.dataset import Dataset
from trtcal.data.fingerprint import Digests, Feeds, Labels
from trtcal.errors import InputError
from trtcal.storage import canonical_json, digest_bytes


@dataclass(frozen=True)
class Part:
    """The samples of `whole` from `start` up to `stop`; its first sample is number 0 here."""

    whole: Dataset
    start: int
    stop: int

    @property
    def name(self) -> str:
        """The name of the whole, and which samples of it."""
        return f"{self.whole.name}[{self.start}:{self.stop}]"

    @property
    def inputs(self) -> tuple[str, ...]:
        """The model's inputs that every batch feeds."""
        return self.whole.inputs

    @property
    def labels(self) -> Labels | None:
        """One class a sample (int64, shape (samples,)), None if the data have none."""
        labels = self.whole.labels
        return None if labels is None else labels[self.start : self.stop]

    @property
    def unused(self) -> tuple[str, ...]:
        """Arrays or files among the data that are not used."""
        return self.whole.unused

    @property
    def identity(self) -> str:
        """Digest that is known before the samples are read, if that of the whole is."""
        return self._derived(self.whole.identity)

    @property
    def fingerprint(self) -> str:
        """Digest made of that of the whole, which may have to be read for it, and of the range."""
        return self._derived(self.whole.fingerprint)

    def _derived(self, digest: str) -> str:
        body = {"whole": digest, "start": self.start, "stop": self.stop}
        return digest_bytes(canonical_json(body))

    def __len__(self) -> int:
        return self.stop - self.start

    def batches(self, size: int, start: int = 0, stop: int | None = None) -> Iterator[Feeds]:
        """Yield feeds of `size` samples in order from `start` up to `stop`; the last may be smaller."""
        end = self.stop if stop is None else min(self.start + stop, self.stop)
        return self.whole.batches(size, self.start + start, end)

    def witnessed(self) -> Digests:
        """Return the digests of its samples read so far; (0, 32) if the fingerprint needs none."""
        return self.whole.witnessed()[self.start : self.stop]

    def learn(self, witnessed: Digests) -> None:
        """Take in what another process witnessed; `InputError` if it read other samples."""
        before = np.zeros((self.start, witnessed.shape[1]), np.uint8)
        self.whole.learn(np.concatenate([before, witnessed]))


def part(dataset: Dataset, start: int, stop: int) -> Part:
    """Return a dataset's samples from `start` up to `stop`; `InputError` if there are no such ones.

    Where the model's batch is fixed, both are to be multiples of it; see `whole_batches`.
    """
    if not 0 <= start < stop <= len(dataset):
        raise InputError(
            f"data {dataset.name} have {len(dataset)} samples: there are none from {start} to {stop}",
            "take a part that lies among them",
        )
    return Part(dataset, start, stop)
