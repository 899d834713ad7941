"""Turns audio files into 16 kHz samples, speech probabilities and places to cut. Independent of models and requests.

Decoding: `decode` (in the server) -> `processes/launcher` -> `processes/fork_server` (a process of its own) ->
`decoder_child` (a process for each file) -> `sniff`, `resample`. `decoder_wire` is their protocol.

This file imports nothing on purpose: the child process imports the package too, and the first caller waits for its
start.
"""
