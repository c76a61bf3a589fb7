"""What builds and runs engines; the only room that imports ONNX Runtime, TensorRT or pycuda."""
