"""Engines with scripted answers, for tests. The wheel does not include them."""
