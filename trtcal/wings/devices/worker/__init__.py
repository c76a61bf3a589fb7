"""What runs on a device: written for Python 3.8 and its standard library."""
