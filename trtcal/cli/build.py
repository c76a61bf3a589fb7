"""`trtcal build`."""

from __future__ import annotations

from pathlib import Path

import click

from trtcal.cli.output import (
    json_option,
    parameters,
    print_json,
    print_table,
    progress,
    say,
)


@click.command(
    epilog="Example: trtcal build model-int8.onnx --target sm89 "
    "--shapes image=1x1x8x8:8x1x8x8:64x1x8x8 -o builds/sm89"
)
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--backend", "backend_name", help="onnxruntime, tensorrt-rtx or tensorrt.")
@click.option("--target", help="cpu, a compute capability such as sm89, or gpu (the one here).")
@click.option(
    "--shapes",
    multiple=True,
    metavar="INPUT=MIN:OPT:MAX",
    help="Shapes of a dynamic input; may be repeated.  [default: batch 1, 8, 32]",
)
@click.option("--time-limit", type=float, default=1800.0, show_default=True, help="In seconds.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    help="Folder for the engine, build.log and build.json.",
)
@json_option
def command(
    model: Path,
    backend_name: str | None,
    target: str | None,
    shapes: tuple[str, ...],
    time_limit: float,
    output: Path,
    as_json: bool,
) -> None:
    """Build an engine from MODEL in a child process, and say what every layer got.

    Without --backend the target decides: cpu is onnxruntime's, sm89 and its like tensorrt-rtx's.
    """
    from trtcal.backends.base import BuildOptions, build
    from trtcal.backends.registry import find_backend
    from trtcal.backends.shapes import parse_shapes
    from trtcal.model import load_model

    backend, chosen = find_backend(backend_name, target)
    ranges = parse_shapes(
        {name: str(text) for name, text in parameters(shapes, "x=1x3:8x3:32x3").items()}
    )
    options = BuildOptions(chosen, ranges, time_limit)
    with progress(f"building for {chosen} with {backend.name}", 1) as advance:
        result = build(load_model(model), backend, options, output)
        advance(1)
    if as_json:
        print_json(result.to_document())
        return
    rows = [(o.node, o.asked, o.got, o.layer or "", o.reason or "") for o in result.outcomes]
    title = f"{result.model_name}: {backend.name} {result.backend_version} for {chosen}"
    print_table(("node", "asked", "got", "engine layer", "why"), rows, title)
    lost = sum(outcome.is_lost for outcome in result.outcomes)
    say(f"{len(result.layers)} engine layers; {lost} nodes did not get what was asked")
    say(f"wrote {result.engine}  {result.digest[:19]}")
