"""What was really built: logs, layers, fusions, and what is wrong with them."""
