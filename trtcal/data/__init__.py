"""Datasets: named, ordered, fingerprinted sources of samples."""

from trtcal.data.dataset import Dataset, Feeds, batch_for, size_ranges, whole_batches
from trtcal.data.opening import open_dataset
from trtcal.data.subsets import CountedDataset, Subset, count_read, counted, held_back
