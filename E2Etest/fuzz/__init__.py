"""Random and mutated input for every route, socket and decoder: no 5xx, nothing that hangs, no traceback.

`make fuzz` runs it for `FUZZ_S` seconds, as a part of `make nightly` too, with new input each time. pytest alone runs a
fixed selection for about a minute.
"""
