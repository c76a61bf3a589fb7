"""Datasets: named, ordered, fingerprinted sources of samples."""

from trtcal.data.dataset import Dataset, fixed_batch, whole_batches
from trtcal.data.fingerprint import Feeds
from trtcal.data.opening import open_dataset
from trtcal.data.view import held_back, part

__all__ = ["Dataset", "Feeds", "fixed_batch", "held_back", "open_dataset", "part", "whole_batches"]
