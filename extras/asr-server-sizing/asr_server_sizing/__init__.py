"""Computes how much a replica serves, and how many replicas a load needs, from measured costs."""
