"""`trtcal quantize`."""

from __future__ import annotations

from pathlib import Path

import click

from trtcal.cli.output import (
    config_here,
    config_option,
    json_option,
    prepared_model,
    print_json,
    required,
    say,
    skip_option,
)


@click.command(
    epilog="Example: trtcal quantize model.onnx --calibration calibration.json "
    "--plan mixed.json -o model-mixed.onnx"
)
@click.argument("model", type=click.Path(path_type=Path), required=False)
@click.option(
    "--calibration",
    "ranges",
    type=click.Path(path_type=Path),
    default=Path("calibration.json"),
    show_default=True,
    help="What calibrate wrote.",
)
@click.option(
    "--plan",
    "plan_path",
    type=click.Path(path_type=Path),
    help="Precision by layer; without it every layer is asked in INT8.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    help="Where to write the ONNX.",
)
@skip_option
@config_option
@json_option
def command(
    model: Path | None,
    ranges: Path,
    plan_path: Path | None,
    output: Path,
    skipped: tuple[str, ...],
    config_path: Path | None,
    as_json: bool,
) -> None:
    """Write Q/DQ into MODEL where TensorRT's rules and the plan want INT8.

    A plan is JSON: {"default": "int8", "layers": {"layer name": "fp32"}}.
    """
    from trtcal.calibration import read_calibration
    from trtcal.model import load_model
    from trtcal.quantize import Plan, quantize, read_plan, write_quantized

    config = config_here(config_path)
    path = required(model or config.model, "the model", "MODEL")
    calibration = read_calibration(ranges)
    plan = read_plan(plan_path) if plan_path else Plan()
    prepared = prepared_model(load_model(path), config, skipped)
    quantized = quantize(prepared, calibration, plan)
    written = write_quantized(output, quantized)
    if as_json:
        print_json(
            {
                "output": str(output),
                "digest": written.digest,
                "weights": written.weights,
                "asked": quantized.asked,
                "skipped": quantized.skipped,
            }
        )
        return
    asked = list(quantized.asked.values())
    say(f"{asked.count('int8')} of {len(asked)} heavy layers are asked in INT8")
    for name, reason in quantized.skipped.items():
        say(f"left in float: {name}: {reason}")
    say(f"wrote {output}  {written.digest[:19]}")
    if written.weights is not None:
        say(f"wrote its weights beside it, where they have to stay: {written.weights}")
