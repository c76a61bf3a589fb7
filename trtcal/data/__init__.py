"""Datasets: named, ordered, fingerprinted sources of samples."""

from trtcal.data.dataset import Dataset, Feeds, fixed_batch
from trtcal.data.opening import open_dataset

__all__ = ["Dataset", "Feeds", "fixed_batch", "open_dataset"]
