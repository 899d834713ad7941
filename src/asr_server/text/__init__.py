"""Strings in, strings out: languages, words in every script, joining, repetition. Knows no model and no request."""
