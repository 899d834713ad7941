"""Measurements that need a machine with a GPU: `make gpu` makes all of them and writes one JSON file."""
