"""trtcal: calibrate a network to INT8, see what TensorRT really built, and explain the trade-off."""

__version__ = "0.1.0"
