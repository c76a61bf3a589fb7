"""Variants against the FP32 reference: accuracy, agreement, latency, with intervals."""
