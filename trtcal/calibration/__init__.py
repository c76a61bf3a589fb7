"""One pass over the data gives histograms; ranges are chosen from these by any method."""

from trtcal.calibration.observation import (
    Observation,
    cached,
    calibrate,
    create_calibrator,
    is_observation,
    read_observation,
    write_observation,
)
from trtcal.calibration.observer import ObserveOptions, observe
