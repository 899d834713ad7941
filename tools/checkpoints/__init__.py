"""Checkpoints of the released layouts with random weights, for tests and measurements."""
