"""Bytes of any container to mono float32 at 16 kHz, speech probability, and where to cut; knows no model or request.

Rooms inside: `decode` (server side) -> `launcher` -> `zygote` (the child process) -> `sandbox`, `track`, `sniff`,
`resample`; `wire` is what the two processes say to each other. `vad` and `spans` are plain functions of samples and
know nothing of files. Nothing is imported here on purpose: the child imports this package too, and its start is on
the first caller's clock.
"""
