"""What is wrong with a build: findings from its log, its layers and its graph, limits, acceptance."""

from trtcal.evidence.diagnosis.build_diagnosis import (
    KIND,
    Case,
    Diagnosis,
    Suppression,
    diagnose,
    summary_line,
)
from trtcal.evidence.diagnosis.log_findings import FAILING
from trtcal.evidence.diagnosis.reasons import Fault, Mentions, explain, find_faults, tensors_of

__all__ = [
    "FAILING",
    "KIND",
    "Case",
    "Diagnosis",
    "Fault",
    "Mentions",
    "Suppression",
    "diagnose",
    "explain",
    "find_faults",
    "summary_line",
    "tensors_of",
]
