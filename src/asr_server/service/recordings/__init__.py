"""Recordings to transcripts: decode, segment, run one job for each span, join."""
