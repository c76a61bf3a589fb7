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
    print_json,
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
    epilog="Example: trtcal ab int8.onnx mixed.onnx --data test.npz --max-drop 0.5 --min-speedup 1.3"
)
@click.argument("baseline", type=click.Path(path_type=Path))
@click.argument("candidate", type=click.Path(path_type=Path))
@data_option
@click.option(
    "--metric",
    help="What decides: top1, top5, agreement, cosine, or a name from --metric-file.  "
    "[default: top1 with labels, else agreement]",
)
@click.option(
    "--metric-file",
    type=click.Path(path_type=Path),
    help="A Python file with metric(outputs, labels) -> {name: value}, called for each sample.",
)
@click.option(
    "--max-drop", type=float, help="How much lower the metric may be.  [default: gates, or 1]"
)
@click.option("--min-speedup", type=float, help="How many times as fast CANDIDATE must be.")
@click.option("--max-slice-drop", type=float, help="How much lower it may be in any slice.")
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
    "--sequential", is_flag=True, help="Response five times, and stop as soon as decided."
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
    max_drop: float | None,
    min_speedup: float | None,
    max_slice_drop: float | None,
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
    """Test whether CANDIDATE may take the place of BASELINE, on the same samples.

    The status is 1 unless the verdict is SHIP or SHIP WITH CARE.
    """
    from trtcal.data import open_dataset
    from trtcal.data.slices import read_slices
    from trtcal.documents import write_document
    from trtcal.evaluate import open_variant
    from trtcal.evaluate.ab import ab_test
    from trtcal.evaluate.ab_rule import Rule
    from trtcal.evaluate.comparison import batch_for
    from trtcal.evaluate.groups import files_of
    from trtcal.evaluate.metrics import load_metric
    from trtcal.model import load_model

    config = config_here(config_path)
    settings, gates = config.evaluation, config.gates
    model = load_model(baseline)
    source = required(data or settings.data, "the data", "--data")
    dataset = open_dataset(source, model, config.images, settings.labels)
    rule = Rule(
        metric or ("top1" if dataset.labels is not None else "agreement"),
        gates.max_top1_drop if max_drop is None else max_drop,
        gates.min_speedup if min_speedup is None else min_speedup,
        max_slice_drop,
        alpha,
    )
    both = [
        open_variant(path, name, trust, model)
        for path, name in ((baseline, f"A {baseline.stem}"), (candidate, f"B {candidate.stem}"))
    ]
    third = open_variant(reference, trust=trust, reference=model) if reference else None
    with progress("testing", len(dataset)) as advance:
        result = ab_test(
            both[0],
            both[1],
            dataset,
            rule,
            batch_for(model, batch or settings.batch),
            read_slices(slices, len(dataset), files_of(dataset)) if slices else None,
            third,
            load_metric(metric_file) if metric_file else None,
            sequential,
            advance,
        )
    document = write_document(output, result.to_document())
    if as_json:
        print_json(document)
    else:
        show(result)
        say(f"wrote {output}  {document['digest'][:19]}")
    if not result.verdict.is_good:
        raise GateFailed(f"{result.verdict.word}: {result.verdict.sentence}", _hint(result))


def _hint(result: ABTest) -> str:
    if result.verdict.more_samples is not None:
        return f"about {result.verdict.more_samples:,} more would decide"
    return "keep A, or leave the layers that lose most in float"


def show(result: ABTest) -> None:
    """Print the answers, the verdict and its rule."""
    title = f"{result.seen} of {result.samples} samples of {result.dataset_name}"
    columns = ("question", result.baseline, result.candidate, "B against A", "interval", "limit",
               "p", "answer")  # fmt: skip
    print_table(columns, [_row(answer) for answer in result.verdict.answers], title)
    for look in result.looks:
        say(f"look at {look['samples']} samples, error rate {look['alpha']:.2g}: {look['word']}")
    rule = result.verdict.rule
    parts = [f"{rule.metric} at most {rule.max_drop:g} lower"]
    if rule.max_slice_drop is not None:
        parts.append(f"in every slice at most {rule.max_slice_drop:g} lower")
    if rule.min_speedup is not None:
        parts.append(f"at least {rule.min_speedup:g} times as fast")
    say(f"rule: {'; '.join(parts)}; by the whole interval, error rate {rule.alpha:g} in all")
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
        "" if answer.limit is None else f"{answer.limit:g}",
        f"{p:.2g}",
        answer.state or "",
    )
