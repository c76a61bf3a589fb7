"""The commands of the wing."""
