"""A stand-in of the CUDA driver, and how our own PyCUDA code behaves when a call of it fails."""
