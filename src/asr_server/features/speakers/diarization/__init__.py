"""Finds the speakers of a recording or a live session: the times and the voice of each."""
