"""The command that is worth running next: the last line on standard error, ready to paste.

What a command made, and from which files, is written down beside the engines that this user built, so
that a later command can name the files of an earlier one.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trtcal.documents.streams import command_line
from trtcal.errors import TrtcalError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from trtcal.cli.ab import Ab
    from trtcal.cli.compare import Compare
    from trtcal.cli.options import EvaluationOptions, Options
    from trtcal.limits import Judgement

MADE = "made.jsonl"
CARRIED = ("config_path", "optimizations", "task", "outputs", "metric_file", "limits", "on")
"""Options without which the next command would be about something else."""
_next: list[str] = []  # the command worth running next, if there is one

Files = dict[str, str]


def remember(output: Path, **sources: str | Path | None) -> None:
    """Write down which files something was made from; that this fails stops nothing."""
    from trtcal.documents import append_line, state_path

    known = {name: os.path.abspath(path) for name, path in sources.items() if path is not None}
    with contextlib.suppress(TrtcalError):
        append_line(state_path(MADE), json.dumps({"made": os.path.abspath(output), **known}))


def recall(output: Path) -> Files:
    """Return the files that something was last made from, of those that are still there."""
    from trtcal.documents import state_path
    from trtcal.documents.bounds import read_bytes

    place, sources = os.path.abspath(output), Files()
    with contextlib.suppress(TrtcalError):
        for line in read_bytes(state_path(MADE)).splitlines():
            entry = _entry(line)
            if entry.pop("made", None) == place:
                sources = entry
    return {name: _short(path) for name, path in sources.items() if os.path.exists(path)}


def _entry(line: bytes) -> Files:
    """Return the files of a line, none if it is damaged."""
    from trtcal.documents.bounds import parse_json

    with contextlib.suppress(ValueError):
        entry = parse_json(line)
        if isinstance(entry, dict) and all(isinstance(path, str) for path in entry.values()):
            return entry
    return {}


def _short(path: str) -> str:
    """Return a path as it is typed here: relative, unless it is elsewhere."""
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative


def advise(options: Options, *words: str | Path | None, why: str = "") -> None:
    """Keep the command that is worth running next; not with -q and --json, nor if a file is unknown."""
    from trtcal.cli.output import is_quiet, note

    if is_quiet() or getattr(options, "as_json", False) or None in words:
        return
    if why:
        note(f"note: {why}")
    _next[:] = [command_line(*words, *_carried(options, words))] if words else []


def _carried(options: Options, words: Sequence[str | Path | None]) -> Iterator[str]:
    """Yield the options of this command that the next one takes as well, and its words lack."""
    root = click.get_current_context().find_root()
    group = root.command
    command = group.get_command(root, str(words[0])) if isinstance(group, click.Group) else None
    for parameter in command.params if command else ():
        name, word = str(parameter.name), parameter.opts[-1]
        value = getattr(options, name, None) if name in CARRIED else None
        is_limit_of_search = (words[0], name) == ("search", "limits")  # `searched` has its own
        if value in (None, (), parameter.default) or word in words or is_limit_of_search:
            continue
        for each in value if isinstance(value, tuple) else (value,):
            if (words[0], name) != ("ab", "limits") or _is_tested(each):
                yield from (word, str(each))


def _is_tested(limit: str) -> bool:
    """Whether an A/B test takes a limit."""
    from trtcal.evaluate.ab_rule import is_tested
    from trtcal.limits import parse_limits

    return all(map(is_tested, parse_limits([limit])))


def say_next(*, is_done: bool = True) -> None:
    """Print the command that was kept, if the work was done, and forget it."""
    if _next and is_done:
        from trtcal.cli.output import note  # `--help` imports nothing heavy

        note(f"next: {_next[0]}")
    _next.clear()


def advise_on_loss(
    options: EvaluationOptions, reference: Path, judged: Mapping[Path, Sequence[Judgement]]
) -> bool:
    """Advise what helps most where no variant holds its limits; tell whether that is so.

    Optimizations, then the search, for a variant that loses less could hold; else more samples.
    """
    from trtcal.limits import HOLDS, overall
    from trtcal.reporting.advice import IMPROVE, searched, what_helps

    if any(overall(limits) == HOLDS for limits in judged.values()):
        return False
    sources = {
        path: recall(path)
        for path, limits in judged.items()
        if any(limit.may_improve() for limit in limits)
    }
    improved = [path for path, files in sources.items() if "optimizations" in files]
    path = next(iter([*improved, *sources]), reference)
    step = what_helps(judged.get(path, ()), bool(improved))
    if step is None or any("plan" in files for files in sources.values()):
        _advise_samples(options, [limit for limits in judged.values() for limit in limits])
        return True
    model, files = sources[path].get("model", reference), sources[path]
    if step == IMPROVE:
        data = files.get("data", options.config.calibration.data)
        output = f"{reference.stem}-improved.onnx"
        advise(options, step, model, "--data", data, "--improve", "fast", "-o", output)
    else:
        ranges = ("--calibration", files.get("ranges"), "--data", options.test_data)
        more = ("--optimizations", files["optimizations"], *searched(judged[path]))
        advise(options, step, model, *ranges, *more)
    return True


def _advise_samples(options: EvaluationOptions, limits: Sequence[Judgement]) -> None:
    """Say how many more samples decide, or take the suggested limit where none is given."""
    from trtcal.cli.output import remark
    from trtcal.metrics import TIMES
    from trtcal.reporting.advice import more_samples

    needed = [each for each in limits if each.samples_needed and each.limit.about.of != TIMES]
    if needed:
        remark(f"undecided: {more_samples(needed)}")
    elif suggested := [limit.limit.plain for limit in limits if limit.is_suggested][:1]:
        why = "no limit decides: the suggested one does where you take it for yours"
        advise(options, *options.again(limits=(*options.limits, *suggested)), why=why)


def advise_after_success(options: Compare | Ab, reference: Path, variant: Path) -> None:
    """Advise the A/B test after a comparison, the comparison after a test, the report after both."""
    folder = options.output.parent
    tests = {"ab": "ab.json", "compare": "comparison.json"}
    other = next(command for command in tests if command != type(options).__name__.lower())
    if (folder / tests[other]).exists():
        advise(options, "report", folder, "-o", "report.html")
    else:
        advise(options, other, reference, variant, "--data", options.test_data)
