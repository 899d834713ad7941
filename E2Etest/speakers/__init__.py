"""Conversations of real people, made from recordings with known words, and measures of their recognised speakers."""
