"""What hangs on the house by one command; joined by entry points, imported by nothing in the core."""
