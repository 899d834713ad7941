"""Transcripts and translations to response bodies."""
