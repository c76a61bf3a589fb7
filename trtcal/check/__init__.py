"""Whether data fit a model: checked on the FP32 model before time is spent on them."""
