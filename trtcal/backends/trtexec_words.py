"""Options of `trtexec`, for the line that a build shows and for the worker (so it is Python 3.8)."""

from __future__ import annotations

from typing import Any, Mapping, Sequence


def build_words(request: Mapping[str, Any]) -> list[str]:
    """Return the options of a build that `trtexec` of every version and `tensorrt_rtx` share."""
    words = ["--profilingVerbosity=" + (request.get("verbosity") or "detailed")]
    profiles = request.get("profiles") or []
    for number, profile in enumerate(profiles):
        words += [f"--profile={number}"] if len(profiles) > 1 else []
        for place, kind in enumerate(("min", "opt", "max")):
            shapes = {name: limits[place] for name, limits in profile.items()}
            words += shape_words(kind + "Shapes", shapes)
    if request.get("workspace_bytes") is not None:
        mebibytes = "%.20f" % (request["workspace_bytes"] / (1 << 20))  # what every version takes
        words.append("--memPoolSize=workspace:" + mebibytes.rstrip("0").rstrip("."))
    if request.get("optimization_level") is not None:
        words.append(f"--builderOptimizationLevel={request['optimization_level']}")
    return words


def shape_words(option: str, shapes: Mapping[str, Sequence[int]]) -> list[str]:
    """Return one option with a shape for each input but scalars, none if there are none."""
    pairs = [f"{quoted(n)}:{'x'.join(map(str, shape))}" for n, shape in shapes.items() if shape]
    return [f"--{option}={','.join(pairs)}"] if pairs else []


def quoted(name: str) -> str:
    """Return a name as trtexec's lists need it."""
    return f"'{name}'" if set(name) & {":", ","} else name
