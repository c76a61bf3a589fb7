"""The command line of NVIDIA's own program that builds the same engine.

Sources: sampleOptions.cpp of TensorRT 8.6 and 10, and the documentation of TensorRT-RTX.
"""

from __future__ import annotations

import shlex

from trtcal.backends.options import BuildOptions, ShapeRanges
from trtcal.backends.targets import parse_target

MIB = 1 << 20
STRONGLY_TYPED = range(9, 11)
"""The major versions of TensorRT in which strong typing has to be asked for."""


def trtexec_command(
    version: str,
    options: BuildOptions,
    profiles: tuple[ShapeRanges, ...],
    quantized: bool,
    onnx: str,
    engine: str,
) -> str | None:
    """Return the shell line of `trtexec`, None where this version's can't do the same."""
    major = int(version.split(".")[0])
    if len(profiles) > 1 and major < 10:
        return None
    typing = ["--int8"] if quantized and major < min(STRONGLY_TYPED) else []
    if major in STRONGLY_TYPED:
        typing = ["--stronglyTyped"]
    cache = [f"--timingCacheFile={options.timing_cache}"] if options.timing_cache else []
    common = _common(options, profiles, onnx, engine)
    return shlex.join(["trtexec", *common, *typing, "--noTF32", *cache])


def rtx_command(
    options: BuildOptions, profiles: tuple[ShapeRanges, ...], onnx: str, engine: str
) -> str:
    """Return the shell line of `tensorrt_rtx`."""
    capabilities = ",".join(f"{major}{minor}" for major, minor in parse_target(options.target))
    target = [f"--computeCapabilities={capabilities}"] if capabilities else []
    return shlex.join(["tensorrt_rtx", *_common(options, profiles, onnx, engine), *target])


def _common(
    options: BuildOptions, profiles: tuple[ShapeRanges, ...], onnx: str, engine: str
) -> list[str]:
    words = [f"--onnx={onnx}", f"--saveEngine={engine}", "--skipInference", "--verbose"]
    words.append(f"--profilingVerbosity={options.verbosity}")
    for number, profile in enumerate(profiles):
        words += [f"--profile={number}"] if len(profiles) > 1 else []
        words += _shapes(profile)
    if options.workspace_bytes is not None:
        words.append(f"--memPoolSize=workspace:{_number(options.workspace_bytes / MIB)}")
    if options.optimization_level is not None:
        words.append(f"--builderOptimizationLevel={options.optimization_level}")
    return words


def _shapes(profile: ShapeRanges) -> list[str]:
    return [
        f"--{kind}Shapes=" + ",".join(_shape(name, profile[name][place]) for name in profile)
        for place, kind in enumerate(("min", "opt", "max"))
        if profile
    ]


def _shape(name: str, shape: tuple[int, ...]) -> str:
    quoted = f"'{name}'" if set(name) & {":", ","} else name
    return f"{quoted}:{'x'.join(map(str, shape))}"


def _number(mebibytes: float) -> str:
    """Return a size in MiB, the unit that every version takes, without a needless `.0`."""
    return f"{mebibytes:.20f}".rstrip("0").rstrip(".")
