"""Figures of how the source of `asr_server` is built, which may only get better."""
