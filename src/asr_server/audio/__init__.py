"""Audio files to samples at 16 kHz, speech probabilities, and where to cut; knows no model and no request.

Decoding: `decode` (in the server) -> `processes/launcher` -> `processes/fork_server` (a process of its own) ->
`decoder_child` (a process for each file) -> `sniff`, `resample`. `decoder_wire` is their protocol.

This file imports nothing on purpose: the child process imports the package too, and the first caller waits for its
start.
"""
