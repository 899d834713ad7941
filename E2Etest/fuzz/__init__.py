"""Random and mutated input at every door: no 5xx, nothing that hangs, no traceback.

`make test` runs a fixed selection for about a minute; `make fuzz`, or FUZZ_S in seconds, a longer one, new each time.
"""
