"""Qwen3-ASR in torch: weights, processor, prompt and parsing from `qwen_asr`, the forward schedule ours."""
