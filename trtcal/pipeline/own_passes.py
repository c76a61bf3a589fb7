"""Preparation passes of the user's own: functions of a Python file that change a graph in place.

    def drop_nothing(graph):                  # an onnx_graphsurgeon.Graph
        '''Count the nodes and change none.'''
        return 0                              # the number of changes

    PASSES = [drop_nothing]                   # for "file.py"; "file.py:drop_nothing" takes the one

They run after trtcal's own and are held to the same: inputs and outputs of the graph stay, whatever is
read is there, and who changes something counts it.
"""

from __future__ import annotations

import runpy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import onnx_graphsurgeon as gs

from trtcal.config import Config, script_in
from trtcal.data.polygraphy import running
from trtcal.documents import digest_file
from trtcal.errors import InputError
from trtcal.model.passes import PASSES, Pass

LIST = "PASSES"
HINT = (
    "a pass takes an onnx_graphsurgeon.Graph, changes it in place and returns the number of changes"
)


def passes_of(config: Config) -> tuple[Pass, ...]:
    """Return trtcal's passes and those of the scripts in a configuration.

    `InputError` if a script is not trusted, fails, or has a pass of a name that is taken.
    """
    for script in config.prepare.passes:
        config.check_trusted(script)
    own = [one for script in config.prepare.passes for one in read_passes(script)]
    taken = {one.name for one in PASSES}
    for one in own:
        if one.name in taken:
            raise InputError(
                f"{one.script}: a pass with the name {one.name!r} already exists", "rename it"
            )
        taken.add(one.name)
    return (*PASSES, *own)


def read_passes(script: Path) -> list[Pass]:
    """Return the passes of `file.py:function`, or of the list `PASSES` of `file.py`."""
    path, name = script_in(script) or (script, "")
    if not path.is_file():
        raise InputError(f"script {path} does not exist or is not a file", "check the path")
    version = digest_file(path)
    with running(path, HINT):
        found = runpy.run_path(str(path))
    return [_pass(path, version, one) for one in _functions(path, name, found)]


def _functions(path: Path, name: str, found: dict[str, Any]) -> Sequence[Callable[..., Any]]:
    functions = [found.get(name)] if name else found.get(LIST)
    if not isinstance(functions, (list, tuple)) or not all(map(callable, functions)):
        what = f"function {name!r}" if name else f"list {LIST} of functions"
        raise InputError(f"script {path} has no {what}", HINT)
    return [one for one in functions if one is not None]


def _pass(path: Path, version: str, function: Callable[..., Any]) -> Pass:
    def apply(graph: gs.Graph) -> int:
        with running(path, HINT):
            changes = function(graph)
        if not isinstance(changes, int) or isinstance(changes, bool):
            text = f"{path}: {function.__name__} returned {type(changes).__name__}, not a number"
            raise InputError(text, HINT)
        return changes

    name = str(getattr(function, "__name__", "pass"))
    purpose = (function.__doc__ or "").strip().partition("\n")[0]
    return Pass(name, purpose, apply, version=version, script=path.name)
