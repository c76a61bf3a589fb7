"""The network as a graph: a page with all that is known of each node, and exports for other viewers."""
