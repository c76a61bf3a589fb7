"""Bundles: an engine with all that a device needs to check it before it is loaded."""
