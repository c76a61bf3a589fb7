"""What changed, and where: checkpoints, bisection, fingerprints of graphs, TVM."""
