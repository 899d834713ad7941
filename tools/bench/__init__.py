"""Benchmarks: one question a script, JSON out, ratios measured in one run."""
