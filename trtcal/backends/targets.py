"""Targets of TensorRT-RTX as people write them: `sm89`, `sm86,sm120`, `portable`."""

from __future__ import annotations

import re

from trtcal.errors import InputError

PORTABLE = "portable"
CAPABILITY = re.compile(r"sm(\d{1,2})(\d)")

Capability = tuple[int, int]


def parse_target(target: str) -> tuple[Capability, ...]:
    """Return the compute capabilities of a target, none for `portable`; `InputError` if malformed.

    Whether the builder has them is for its own version to say.
    """
    if target == PORTABLE:
        return ()
    found = [CAPABILITY.fullmatch(part) for part in target.split(",")]
    capabilities = tuple((int(one[1]), int(one[2])) for one in found if one)
    if len(capabilities) < len(found):
        raise InputError(
            f"target {target!r} is no compute capability",
            f"write it like sm89, several like sm86,sm120, or {PORTABLE} for all that it supports",
        )
    if len(set(capabilities)) < len(capabilities):
        raise InputError(f"target {target!r} names one capability twice", "name each once")
    return capabilities


def runs_on(target: str, capability: Capability) -> bool:
    """Whether an engine for a target runs on a GPU of this capability.

    Portable engines run on 8.0, 8.6, 8.9, 12.0 and later. Source: NVIDIA's TensorRT-RTX
    documentation, "CPU-Only AOT and TensorRT-RTX Engines".
    """
    wanted = parse_target(target)
    if wanted:
        return capability in wanted
    return capability in ((8, 0), (8, 6), (8, 9)) or capability >= (12, 0)
