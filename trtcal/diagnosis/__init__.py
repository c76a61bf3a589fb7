"""What is wrong with a build: findings from its log, its layers and its graph, limits, acceptance."""

from trtcal.diagnosis.diagnosing import KIND, Case, Diagnosis, diagnose, summary_line
from trtcal.diagnosis.from_log import FAILING
from trtcal.diagnosis.limits import Breach, Limits, Suppression
from trtcal.diagnosis.reasons import Mentions, explain, tensors_of
from trtcal.diagnosis.structure import Fault, find_faults

__all__ = [
    "FAILING",
    "KIND",
    "Breach",
    "Case",
    "Diagnosis",
    "Fault",
    "Limits",
    "Mentions",
    "Suppression",
    "diagnose",
    "explain",
    "find_faults",
    "summary_line",
    "tensors_of",
]
