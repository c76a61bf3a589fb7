"""Better INT8 for the same layers: how many samples it takes."""
