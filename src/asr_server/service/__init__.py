"""The use cases: decode, admit, run, assemble, render. Owns deadlines and cancellation; knows no HTTP."""
