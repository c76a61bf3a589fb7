"""The history of runs: figures and digests over time, what changed, and since when."""
