"""Bundles for servers: Triton, DeepStream, and a container that checks before it serves."""
