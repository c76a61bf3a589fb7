"""Datasets: named, ordered, fingerprinted sources of samples."""

from trtcal.data.dataset import Dataset, Feeds, open_dataset

__all__ = ["Dataset", "Feeds", "open_dataset"]
