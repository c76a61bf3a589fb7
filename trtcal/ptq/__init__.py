"""Post-training optimization: changes without training with which INT8 loses less accuracy."""
