"""Datasets: named, ordered, fingerprinted sources of samples."""

from trtcal.data.dataset import Dataset, fixed_batch, whole_batches
from trtcal.data.fingerprint import Feeds
from trtcal.data.opening import open_dataset

__all__ = ["Dataset", "Feeds", "fixed_batch", "open_dataset", "whole_batches"]
