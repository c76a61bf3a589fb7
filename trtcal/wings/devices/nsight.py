"""Nsight Systems' SQLite export: the kernels of an inference by TensorRT's NVTX ranges.

TensorRT opens a range for each layer inside one for the inference, on the thread that launches; CUPTI
records each launch, and each kernel with the number of its launch. What a CUDA graph launches stands in
no layer's range. Source: the tables in NVIDIA's "Nsight Systems exporter SQLite schema".

The file is untrusted: tables only (no views, whose SQL would run), bounded rows and time, read only.
"""

from __future__ import annotations

import sqlite3
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

from trtcal.config import read_toml
from trtcal.documents import digest_file
from trtcal.documents.bounds import check_file, seconds_for
from trtcal.errors import InputError
from trtcal.evidence.layers.inspector import LayerTime, Profile
from trtcal.wings.devices.tools import Facts

MAGIC = b"SQLite format 3\0"
MOST_BYTES, MOST_ROWS = 1 << 32, 5_000_000
INFERENCE = "ExecutionContext::enqueue"
HINT = (
    "profile with `nsys profile --trace=cuda,nvtx trtexec ... --noCudaGraph --iterations=100`, then "
    "`nsys export --type=sqlite`"
)
QUERIES = read_toml(Path(__file__).with_suffix(".toml"))
TABLES = (
    *("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS"),
    *("StringIds", "TARGET_INFO_GPU"),
)
READS = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_PRAGMA)


def read_kernels(path: Path) -> Facts:
    """Return the mean time of each layer's kernels, in the order of their first launch.

    `InputError` if it is no export, or has no kernel inside a layer of TensorRT.
    """
    size = check_file(path, MOST_BYTES)
    end = time.process_time() + seconds_for(size)
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)) as base:
            base.text_factory = lambda raw: raw.decode("utf-8", "backslashreplace")
            base.execute("PRAGMA trusted_schema = OFF")
            base.set_progress_handler(lambda: time.process_time() > end, 10_000)
            base.set_authorizer(lambda action, *_: 0 if action in READS else 1)
            _check_tables(base, path)
            return _kernels(base, path)
    except (sqlite3.Error, OverflowError, TypeError, ValueError, RecursionError) as error:
        what = f"{path} cannot be read as an export of Nsight Systems: {error}"
        raise InputError(what, HINT) from error


def _check_tables(base: sqlite3.Connection, path: Path) -> None:
    known = dict(base.execute("SELECT name, type FROM sqlite_master LIMIT 10000"))
    missing = [name for name in TABLES[:4] if known.get(name) != "table"]
    if missing or known.get(TABLES[4], "table") != "table":
        raise InputError(f"{path} has no table {missing or TABLES[4:]}", HINT)


def _rows(
    base: sqlite3.Connection, query: str, kinds: tuple[type, ...]
) -> Iterator[tuple[Any, ...]]:
    for number, row in enumerate(base.execute(query)):
        if number >= MOST_ROWS:
            raise ValueError(f"over {MOST_ROWS:,} rows")
        if all(map(isinstance, row, kinds)):
            yield row


def _kernels(base: sqlite3.Connection, path: Path) -> Facts:
    totals, inferences = defaultdict[str, int](int), set[int]()
    ranges = _rows(base, QUERIES["ranges"], (int, int, int, str))
    for layer, started, duration in _placed(
        ranges, _rows(base, QUERIES["launches"], (int, int, int))
    ):
        if started is not None and duration >= 0:
            inferences.add(started)
            totals[layer] += duration
    outside = totals.pop("", 0)
    if not totals:
        raise InputError(f"{path} has no kernel inside a layer of TensorRT", HINT)
    share = 1e-6 / len(inferences)  # of a nanosecond, in milliseconds of one inference
    times = tuple(LayerTime(name, share * total) for name, total in totals.items())
    warning = f"kernels of no layer took {share * outside:.3g} ms"
    file = {"file": path.name, "kind": "kernels", "digest": digest_file(path)}
    warnings = (warning,) if outside else ()
    return Facts(files=(file,), gpu=_gpu(base), profile=Profile(times), warnings=warnings)


def _placed(
    ranges: Iterator[tuple[Any, ...]], launches: Iterator[tuple[Any, ...]]
) -> Iterator[tuple[str, int | None, int]]:
    """Yield of each kernel the innermost layer, when its inference started, and what it took."""
    opened: list[tuple[Any, ...]] = []
    following = next(ranges, None)
    for start, thread, duration in launches:
        while following is not None and (following[1], following[0]) <= (thread, start):
            opened = [*_open(opened, following[1], following[0]), following]
            following = next(ranges, None)
        opened = _open(opened, thread, start)
        begun = [place for place, each in enumerate(opened) if each[3].startswith(INFERENCE)]
        inner = opened[begun[-1] + 1 :] if begun else []
        yield inner[-1][3] if inner else "", opened[begun[-1]][0] if begun else None, duration


def _open(ranges: list[tuple[Any, ...]], thread: int, moment: int) -> list[tuple[Any, ...]]:
    return [each for each in ranges if each[1] == thread and each[2] >= moment]


def _gpu(base: sqlite3.Connection) -> str | None:
    columns = {row[1] for row in base.execute("PRAGMA table_info(TARGET_INFO_GPU)")}
    names = base.execute("SELECT name FROM TARGET_INFO_GPU LIMIT 2") if "name" in columns else ()
    known = [name for (name,) in names if isinstance(name, str)]
    return known[0] if len(known) == 1 else None
