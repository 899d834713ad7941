"""Other encoders for Qwen3-ASR: exported to ONNX or TensorRT, and one that hears the past alone."""
