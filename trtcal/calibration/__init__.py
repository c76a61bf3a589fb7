"""Response once at the data: histograms of all tensors that a plan can give a range to."""

from trtcal.calibration.observation import (
    Observation,
    cached,
    is_observation,
    read_observation,
    write_observation,
)
from trtcal.calibration.observer import observe, unfinished
from trtcal.calibration.profile import Advice, Profile, Settings

__all__ = [
    "Advice",
    "Observation",
    "Profile",
    "Settings",
    "cached",
    "is_observation",
    "observe",
    "read_observation",
    "unfinished",
    "write_observation",
]
