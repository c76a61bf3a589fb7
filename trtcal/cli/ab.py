"""`trtcal ab`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from trtcal.cli.output import (
    config_here,
    config_option,
    data_option,
    json_option,
    limit_option,
    limits_here,
    print_json,
    print_limits,
    print_table,
    progress,
    required,
    say,
    trust_option,
)
from trtcal.errors import GateFailed

if TYPE_CHECKING:
    from trtcal.evaluate.ab import ABTest
    from trtcal.evaluate.ab_rule import Answer


@click.command(
    epilog="Example: trtcal ab int8.onnx mixed.onnx --data test.npz "
    "--limit 'top1 >= -0.5' --limit 'speedup >= 1.3'"
)
@click.argument("baseline", type=click.Path(path_type=Path))
@click.argument("candidate", type=click.Path(path_type=Path))
@data_option
@click.option(
    "--metric",
    help="What decides: top1, top5, agreement, cosine, or a name from --metric-file.  "
    "[default: that of the first limit, else top1 with labels, agreement without]",
)
@click.option(
    "--metric-file",
    type=click.Path(path_type=Path),
    help="A Python file with metric(outputs, labels) -> {name: value}, called for each sample.",
)
@limit_option
@click.option(
    "--slices", type=click.Path(path_type=Path), help="CSV: attributes, then one row a sample."
)
@click.option(
    "--reference",
    type=click.Path(path_type=Path),
    help="What agreement, cosine and KL are measured against.  [default: BASELINE]",
)
@click.option("--alpha", type=float, default=0.05, show_default=True, help="Error rate of it all.")
@click.option(
    "--sequential", is_flag=True, help="Judge five times on the way, and stop once it is decided."
)
@click.option("--batch", type=click.IntRange(1), help="Samples run together.  [default: 32]")
@trust_option
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=Path("ab.json"),
    show_default=True,
    help="Where to write the test.",
)
@config_option
@json_option
def command(
    baseline: Path,
    candidate: Path,
    data: Path | None,
    metric: str | None,
    metric_file: Path | None,
    limits: tuple[str, ...],
    slices: Path | None,
    reference: Path | None,
    alpha: float,
    sequential: bool,
    batch: int | None,
    trust: bool,
    output: Path,
    config_path: Path | None,
    as_json: bool,
) -> None:
    """Test whether CANDIDATE can replace BASELINE, on the same samples.

    Limits are about the figures of each sample, as in "top1 >= -0.5" (or "top1@slices >= -3" for every
    slice), and about "speedup" and "latency_p50". Without one, top1 and agreement may fall by 1 point.

    The status is 1 unless the verdict is SHIP or SHIP WITH CARE.
    """
    from trtcal.data import open_dataset
    from trtcal.data.slices import read_slices
    from trtcal.documents import write_document
    from trtcal.evaluate.ab import ABOptions, ab_test
    from trtcal.evaluate.ab_rule import is_tested, rule_for
    from trtcal.evaluate.metrics import load_metric
    from trtcal.evaluate.variants import batch_for, open_variant
    from trtcal.model import load_model

    config = config_here(config_path)
    settings = config.evaluation
    model = load_model(baseline)
    source = required(data or settings.data, "the data", "--data")
    dataset = open_dataset(source, model, config.images, settings.labels)
    wanted = limits_here(config, limits, is_tested)
    rule = rule_for(wanted, metric, dataset.labels is not None, alpha)
    both = [
        open_variant(path, name, trust, model)
        for path, name in ((baseline, f"A {baseline.stem}"), (candidate, f"B {candidate.stem}"))
    ]
    with progress("testing", len(dataset)) as advance:
        options = ABOptions(
            batch_for(model, batch or settings.batch),
            read_slices(slices, len(dataset), dataset.files) if slices else None,
            open_variant(reference, trust=trust, reference=model) if reference else None,
            load_metric(metric_file) if metric_file else None,
            sequential,
            advance,
        )
        result = ab_test(both[0], both[1], dataset, rule, options)
    document = write_document(output, result.to_document())
    if as_json:
        print_json(document)
    else:
        show(result)
        say(f"wrote {output}  {document['digest'][:19]}")
    if not result.verdict.is_good:
        raise GateFailed(f"{result.verdict.word}: {result.verdict.sentence}", _hint(result))


def _hint(result: ABTest) -> str:
    if result.verdict.samples_needed is not None:
        return f"about {result.verdict.samples_needed:,} in all would decide"
    return "keep A, or leave the layers that lose most in float"


def show(result: ABTest) -> None:
    """Print the comparisons, the limits and the verdict."""
    title = f"{result.seen} of {result.samples} samples of {result.dataset_name}"
    columns = ("figure", result.baseline, result.candidate, "B against A", "interval", "p", "mid-p")
    print_table(columns, [_row(answer) for answer in result.verdict.answers], title)
    for one in result.interim:
        say(f"analysis of {one['samples']} samples, error rate {one['alpha']:.2g}: {one['word']}")
    print_limits(result.verdict.limits, f"limits, error rate {result.verdict.rule.alpha:g} in all")
    for warning in result.verdict.warnings:
        say(f"care: {warning}")
    say(f"{result.verdict.word}: {result.verdict.sentence}")


def _row(answer: Answer) -> tuple[str, ...]:
    found = answer.difference
    p = answer.p if answer.adjusted_p is None else answer.adjusted_p
    return (
        answer.name,
        f"{answer.baseline:.5g}",
        f"{answer.candidate:.5g}",
        f"{found.value:+.3g}" if answer.unit != "times" else f"{found.value:.3g} times",
        f"{found.low:.3g} to {found.high:.3g}",
        f"{p:.2g}",
        "" if answer.mid_p is None else f"{answer.mid_p:.2g}",
    )
