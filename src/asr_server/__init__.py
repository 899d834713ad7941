"""A self-hosted speech-to-text server on Qwen3-ASR."""

__version__ = "0.1.0"
