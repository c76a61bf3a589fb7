"""Fuzzing: mutated inputs of every format that trtcal reads."""
