"""Models of other frameworks become ONNX: TensorFlow, Keras, TFLite and PyTorch."""
