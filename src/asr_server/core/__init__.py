"""Types and helpers that all packages share; imports no other part of `asr_server`."""
