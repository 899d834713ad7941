"""The Qwen3-ASR engine and its aligner, in torch or OpenVINO. It loads the SDK's checkpoints without the SDK."""
