"""Preparation passes of the user's own: functions of a Python file that change a graph in place.

    def drop_nothing(graph):                  # an onnx_graphsurgeon.Graph
        '''Count the nodes and change none.'''
        return 0                              # the number of changes

    PASSES = [drop_nothing]                   # for "file.py"; "file.py:drop_nothing" takes the one

They run after trtcal's own and are held to the same: inputs and outputs of the graph stay, whatever is
read is there, and who changes something counts it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx_graphsurgeon as gs

from trtcal.config import Config, script_in
from trtcal.documents import digest_file
from trtcal.errors import InputError
from trtcal.model.passes import PASSES, Pass
from trtcal.scripts import run_file, running

LIST = "PASSES"
PASSES_FORM = (
    "a pass takes an onnx_graphsurgeon.Graph, changes it in place and returns the number of changes"
)


def passes_of(config: Config) -> tuple[Pass, ...]:
    """Return trtcal's passes and those of the scripts in a configuration.

    `InputError` if a script is not trusted, fails, or has a pass of a name that is taken.
    """
    for script in config.prepare.passes:
        config.check_trusted(script)
    passes = list(PASSES)
    for own in (own for script in config.prepare.passes for own in read_passes(script)):
        if own.name in {earlier.name for earlier in passes}:
            raise InputError(
                f"{own.script}: a pass with the name {own.name!r} already exists", "rename it"
            )
        passes.append(own)
    return tuple(passes)


def read_passes(script: Path) -> list[Pass]:
    """Return the passes of `file.py:function`, or of the list `PASSES` of `file.py`."""
    path, name = script_in(script) or (script, "")
    with running(path, PASSES_FORM):
        names = run_file(path)
    functions = [names.get(name)] if name else names.get(LIST)
    if not isinstance(functions, (list, tuple)) or not all(map(callable, functions)):
        missing = f"function {name!r}" if name else f"list {LIST} of functions"
        raise InputError(f"script {path} has no {missing}", PASSES_FORM)
    version = digest_file(path)
    return [_pass(path, version, function) for function in functions]


def _pass(path: Path, version: str, function: Callable[..., Any]) -> Pass:
    def apply(graph: gs.Graph) -> int:
        with running(path, PASSES_FORM):
            changes = function(graph)
        if not isinstance(changes, int) or isinstance(changes, bool):
            text = f"{path}: {function.__name__} returned {type(changes).__name__}, not a number"
            raise InputError(text, PASSES_FORM)
        return changes

    name = str(getattr(function, "__name__", "pass"))
    purpose = (function.__doc__ or "").strip().partition("\n")[0]
    return Pass(name, purpose, apply, version=version, script=path.name)
