"""Apache TVM's Relax: checkpoints of its passes, and which operators share a kernel."""
