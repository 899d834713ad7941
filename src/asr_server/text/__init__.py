"""Strings in, strings out: language names, joining spans, repetition clean-up. Knows no model and no request."""
