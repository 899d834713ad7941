"""Channels that may be people: each is transcribed by itself."""
