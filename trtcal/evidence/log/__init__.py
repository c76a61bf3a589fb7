"""Build logs: events and layers out of what a builder printed, and what they mean."""

from trtcal.evidence.log.reader import ParsedLog, events_of_file, parse_file, parse_lines
from trtcal.evidence.log.recognition import CATEGORIES, RULES, SEVERITIES, Event
from trtcal.evidence.log.summary import summarize

__all__ = [
    "CATEGORIES",
    "RULES",
    "SEVERITIES",
    "Event",
    "ParsedLog",
    "events_of_file",
    "parse_file",
    "parse_lines",
    "summarize",
]
