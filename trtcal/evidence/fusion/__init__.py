"""The fusion check: what should become one kernel, what breaks it, and what a compiler made of it."""
