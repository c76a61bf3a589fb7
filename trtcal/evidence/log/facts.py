"""What a log says of the build as a whole: how it ended, how long it took, with what and on what."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from trtcal.evidence.log.recognition import Event
from trtcal.evidence.log.rules import Value

BUILT, FAILED, UNKNOWN = "built", "failed", "unknown"
INNER = "generation completed"  # what TensorRT itself times: a part of what the tools time
PEAK = "Peak memory"
# Where a builder stops, and where what it built is loaded or run.
BUILDER = re.compile(r"^I?Builder::build|^builder\.cpp::(?!.*~)|(?:^|::)build\w*Engine\b")
RUN_TIME = re.compile(
    r"(?i)\b\w{0,2}(?:executionContext|runtime|engine|stdArchiveReader)(?:\.cpp)?::"
)
ENDING = frozenset({"error", "no_implementation", "uncalibrated"})  # categories of what ends builds
ENDS = FAILED, UNKNOWN, "echoed", "run", BUILT


@dataclass
class Facts:
    """Collects the facts of a build from its events, in any order: of one kind the last line counts.

    So it does for how a build ended: a tool may try again, and a builder makes an engine to calibrate
    with before the one that is wanted. An error at run time ends no build that made an engine.
    """

    _latest: dict[str, tuple[int, Value]] = field(default_factory=dict)
    _memory_mib: dict[tuple[bool, str], int] = field(default_factory=dict)

    def add(self, event: Event, line: int) -> None:
        """Take in an event that stands, the last time that it does, at a line."""
        fields, tags = event.fields, event.tags
        if end := _end(event):
            self._put(end, line, end)
        if event.category == "timing" and "built" in tags:
            self._put(INNER if fields.get("what") == INNER else "seconds", line, fields["seconds"])
        if event.category == "memory":
            self._add_memory(event)
        if fields.get("rule") == "gpu" and event.subject:
            self._put("gpu", line, event.subject)
        for name in ("version", "version_number"):
            if name in fields:
                self._put(name, line, fields[name])

    def _put(self, name: str, line: int, value: Value) -> None:
        if line > self._latest.get(name, (0,))[0]:
            self._latest[name] = line, value

    def _add_memory(self, event: Event) -> None:
        is_peak = str(event.fields.get("what", "")).startswith(PEAK)
        for unit in ("cpu_mib", "gpu_mib"):
            size = event.fields.get(unit)
            if isinstance(size, int) and size > 0:  # some versions print peaks of 0
                key = is_peak, unit
                self._memory_mib[key] = max(size, self._memory_mib.get(key, 0))

    def to_document(self, has_layers: bool = False) -> dict[str, Any]:
        """Return the facts; None for what the log does not say. Only an engine has layers to list.

        `build_s` is what the tool timed, else TensorRT itself. The peaks are those that TensorRT
        reports of its own, else the largest of all readings, which are of the process and the GPU.
        """
        latest = {name: value for name, (_, value) in self._latest.items()}
        result = self._result(has_layers)
        return {
            "result": result,
            "is_failed": result == FAILED,
            "build_s": latest.get("seconds", latest.get(INNER)),
            "peak_cpu_mib": self._peak("cpu_mib"),
            "peak_gpu_mib": self._peak("gpu_mib"),
            "version": latest.get("version", version_of(latest.get("version_number"))),
            "gpu": latest.get("gpu"),
        }

    def _result(self, has_layers: bool) -> str:
        failed, other, echoed, run, built = (self._latest.get(end, (0,))[0] for end in ENDS)
        built = built or has_layers * max(other, run)
        if built or has_layers:
            return FAILED if max(failed, other, echoed * (run <= built)) > built else BUILT
        return FAILED if max(failed, other, echoed, run) else UNKNOWN

    def _peak(self, unit: str) -> int | None:
        return self._memory_mib.get((True, unit), self._memory_mib.get((False, unit)))


def _end(event: Event) -> str | None:
    """Return which of `ENDS` an event speaks for, if any."""
    tags, where = event.tags, str(event.fields.get("where", ""))
    is_error = event.severity == "error" and (event.rule or event).category in ENDING
    if "fatal" in tags or (is_error and BUILDER.search(where)):
        return "echoed" if "echo" in tags else FAILED
    if BUILT in tags or not is_error or "~" in where:
        return BUILT if BUILT in tags else None
    if RUN_TIME.search(where) or "survived" in tags:
        return "run" if RUN_TIME.search(where) else None
    return None if {"code", "where"}.isdisjoint(event.fields) else UNKNOWN


def version_of(number: object) -> str | None:
    """Return the version that trtexec prints as one number.

    >>> version_of(8601), version_of(101600)
    ('8.6.1', '10.16.0')
    """
    if not isinstance(number, int):
        return None
    major, rest = divmod(number, 10_000 if number >= 10_000 else 1000)
    return f"{major}.{rest // 100}.{rest % 100}"
