"""The report on a run: a sealed JSON document, and one HTML page that shows it."""

from trtcal.reporting.charts import Point, accuracy_against_latency
from trtcal.reporting.document import assemble
from trtcal.reporting.render import render, write_page, write_report
from trtcal.reporting.verdict import Verdict, judge

__all__ = [
    "Point",
    "Verdict",
    "accuracy_against_latency",
    "assemble",
    "judge",
    "render",
    "write_page",
    "write_report",
]
