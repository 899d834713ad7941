"""Audio files to samples at 16 kHz, speech probabilities, and where to cut; knows no model and no request.

Decoding: `decode` (in the server) -> `launcher` -> `fork_server` (a process of its own) -> `child` (a process for each
file) -> `sandbox`, `demuxer`, `sniff`, `resample`. `wire` is the protocol between server and child.

This file imports nothing on purpose: the child process imports the package too, and the first caller waits for its
start.
"""
