"""The command line: one file a command, thin over the functions that a notebook would call."""
