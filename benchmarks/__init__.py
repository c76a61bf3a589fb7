"""What trtcal promises about speed and memory, measured beside the alternative in one run."""
