"""All that waits for a GPU, in stages: `make test-gpu`."""
