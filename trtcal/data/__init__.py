"""Datasets: named, ordered, fingerprinted sources of samples."""

from trtcal.data.dataset import Dataset, Feeds, fixed_batch, open_dataset

__all__ = ["Dataset", "Feeds", "fixed_batch", "open_dataset"]
