"""Build logs: events and layers out of what a builder printed, and what they mean."""

from trtcal.buildlog.diagnosis import Outcome, check
from trtcal.buildlog.events import CATEGORIES, SEVERITIES, Event
from trtcal.buildlog.inspector import read_inspector
from trtcal.buildlog.layers import Layer, TensorInfo
from trtcal.buildlog.listing import read_layer
from trtcal.buildlog.parser import ParsedLog, events_of_file, parse_file, parse_lines
from trtcal.buildlog.recognition import RULES
from trtcal.buildlog.summary import summarize

__all__ = [
    "CATEGORIES",
    "RULES",
    "SEVERITIES",
    "Event",
    "Layer",
    "Outcome",
    "ParsedLog",
    "TensorInfo",
    "check",
    "events_of_file",
    "parse_file",
    "parse_lines",
    "read_inspector",
    "read_layer",
    "summarize",
]
