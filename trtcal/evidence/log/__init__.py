"""Build logs: events and layers out of what a builder printed, and what they mean."""
