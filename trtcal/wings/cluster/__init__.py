"""Calibration on several machines."""
