"""The page of metrics, from their table."""

from collections.abc import Iterator

from tests.docs.reference.markdown import table
from trtcal.metrics import METRICS

PAGE = """\
# Metrics

Every figure that a limit can be about, with its unit. Besides these a limit can be about
the number of findings of one [kind](messages/findings.md), such as `tactic_failed == 0`, and
about a figure of your own `--metric-file`. Any other name is an error.

{table}
[Statistics](../statistics.md) says what is compared for which task, and how limits are judged.
"""


def pages() -> Iterator[tuple[str, str]]:
    """Yield the page."""
    rows = [
        (
            f"`{metric.name}`",
            metric.title,
            metric.unit,
            metric.better or "",
            metric.of,
            ", ".join(metric.kinds),
            "yes" if metric.needs_labels else "",
            "yes" if metric.is_watched else "",
        )
        for metric in METRICS.values()
    ]
    head = [
        *("metric", "is", "unit", "better", "of", "outputs", "needs labels"),
        "followed in the history",
    ]
    yield "metrics.md", PAGE.format(table=table(head, rows))
