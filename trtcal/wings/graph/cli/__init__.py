"""Commands of the graph."""
