"""Benchmarks: one question a script, JSON out, ratios measured in one run."""

from asr_server.core.environment import prefer

# Before numpy is imported, as in the server: OpenBLAS's threads would take the processors from those of the engine.
prefer("OPENBLAS_NUM_THREADS", "1")
