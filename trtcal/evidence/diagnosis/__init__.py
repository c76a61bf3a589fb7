"""What is wrong with a build: findings from its log, its layers and its graph, limits, acceptance."""
