"""Run variants of a network from the segment on in which they differ, on values kept before it.

Values at borders lie in temporary files, of one border at a time, and batches are run one by one: so
memory does not grow with samples. Samples are shared out over threads, one session thread each,
which costs less than several threads for one sample.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType

import onnx

from trtcal.backends.lowering import lower
from trtcal.backends.sessions import Session, give_back, open_session, run_session
from trtcal.compare.per_sample import Labels, Values
from trtcal.data import Dataset, Feeds
from trtcal.search.losses import Loss, Rows, joined, rows_of, total
from trtcal.search.segments import Segment, Twins
from trtcal.search.shelf import Shelf

LEAST = 16  # samples
NONE: Mapping[int, Session] = MappingProxyType({})


class Rerun:
    """All-float and all-INT8 runs of one network, kept up to one segment. A context manager.

    `tolerance` is the relative standard error that suffices for a loss; 0 takes all samples.
    """

    def __init__(
        self,
        twins: Twins,
        units: Sequence[str],
        dataset: Dataset,
        samples: int,
        batch: int,
        tolerance: float = 0.0,
    ) -> None:
        self.tolerance = tolerance
        self.twins = twins
        self.units = len(units)
        self.parts = twins.segments(units)
        self.labels, self.batch = dataset.labels, batch
        self.samples = min(samples, len(dataset))
        self.pool = ThreadPoolExecutor(os.cpu_count() or 1, "rerun")
        self.shelf = Shelf()
        self.chosen: dict[str, Collection[str]] = {"float": (), "int8": twins.quantizable}
        self.sessions = {
            (kind, place): self._open(twins.part(segment, int8))
            for kind, int8 in self.chosen.items()
            for place, segment in enumerate(self.parts)
        }
        self.batches, self.rows = self._begin(dataset)

    def __enter__(self) -> Rerun:
        return self

    def __exit__(self, *exception: object) -> None:
        self.pool.shutdown(cancel_futures=True)
        self.sessions.clear()
        self.shelf.close()
        give_back()

    def _begin(self, dataset: Dataset) -> tuple[int, Rows]:
        """Keep the inputs, and run both once, all-INT8 against what float gives."""
        parts: list[Rows] = []
        for number, values in enumerate(dataset.batches(self.batch, 0, self.samples)):
            for kind in self.chosen:
                self.shelf.keep(kind, number, values)
            self.shelf.keep("expected", number, self._through("float", 0, values))
            parts.append(self._compare(self._through("int8", 0, values), number))
        return len(parts), joined(parts)

    def segments(self) -> Iterator[tuple[int, Segment]]:
        """Yield every segment, with both runs kept up to it while it is looked at."""
        for place, segment in enumerate(self.parts):
            yield place, segment
            for kind in self.chosen:
                list(
                    self.pool.map(
                        lambda i, k=kind, p=place: self._advance(k, p, i), range(self.batches)
                    )
                )

    def loss(self, kind: str, place: int, int8: Collection[str]) -> Loss:
        """Return the loss with these nodes of a segment quantized, and all others as in `kind`."""
        return self.loss_with(kind, {place: self.twins.part(self.parts[place], int8)})

    def loss_with(self, kind: str, instead: Mapping[int, onnx.ModelProto]) -> Loss:
        """Return the loss with other models in place of segments, the first of which is looked at.

        Every `LEAST` samples it stops if what differs from `kind` is known to the tolerance.
        """
        sessions = {place: self._open(part) for place, part in instead.items()}
        first = min(instead)

        def one(number: int) -> Rows:
            values = self.shelf.get(kind, number)
            return self._compare(self._through(kind, first, values, sessions), number)

        parts: list[Rows] = []
        step = -(-LEAST // self.batch)
        for start in range(0, self.batches, step):
            parts += self.pool.map(one, range(self.batches)[start : start + step])
            if self._is_known(kind, joined(parts)["error"]):
                break
        return total(joined(parts))

    def adopt(self, instead: Mapping[int, onnx.ModelProto]) -> None:
        """Make these segments part of the all-INT8 run; the first of them is looked at."""
        for place, part in instead.items():
            self.sessions["int8", place] = self._open(part)
        first = min(instead)

        def one(number: int) -> Rows:
            values = self.shelf.get("int8", number)
            return self._compare(self._through("int8", first, values), number)

        self.rows = joined(list(self.pool.map(one, range(self.batches))))

    def _is_known(self, kind: str, error: Values) -> bool:
        """Tell whether the mean is known as well as is asked, or as a layer's equal share would be."""
        usual = self.rows["error"][: len(error)]
        apart = error if kind == "float" else usual - error
        share = usual.mean() / max(self.units, 1)
        wanted = self.tolerance * max(abs(float(apart.mean())), float(share))
        return len(error) > 1 and float(apart.std(ddof=1)) / len(error) ** 0.5 <= wanted

    def whole(self, samples: int | None = None) -> Loss:
        """Return the loss of the all-INT8 run on the first samples, all if None."""
        return total({name: values[:samples] for name, values in self.rows.items()})

    def _compare(self, said: Feeds, number: int) -> Rows:
        expected = self.shelf.get("expected", number)
        pairs = [(expected[name], said[name]) for name in self.twins.outputs]
        return rows_of([a for a, _ in pairs], [b for _, b in pairs], self._labels(number))

    def _labels(self, number: int) -> Labels | None:
        start = number * self.batch
        stop = min(start + self.batch, self.samples)
        return None if self.labels is None else self.labels[start:stop]

    def _through(
        self, kind: str, start: int, values: Feeds, instead: Mapping[int, Session] = NONE
    ) -> Feeds:
        for place in range(start, len(self.parts)):
            session = instead.get(place, self.sessions[kind, place])
            values = self._step(session, self.parts[place], values)
        return values

    def _step(self, session: Session, segment: Segment, values: Feeds) -> Feeds:
        made = run_session(
            session, segment.outputs, {name: values[name] for name in segment.inputs}
        )
        after = {**values, **dict(zip(segment.outputs, made, strict=True))}
        wanted = self._wanted(segment)
        return {name: value for name, value in after.items() if name in wanted}

    def _wanted(self, segment: Segment) -> set[str]:
        later = (part.inputs for part in self.parts if part.start >= segment.stop)
        return set(self.twins.outputs).union(*later)

    @staticmethod
    def _open(part: onnx.ModelProto) -> Session:
        return open_session(lower(part), 1, arena=False)

    def _advance(self, kind: str, place: int, number: int) -> None:
        session = self.sessions[kind, place]
        values = self._step(session, self.parts[place], self.shelf.get(kind, number))
        self.shelf.keep(kind, number, values)
