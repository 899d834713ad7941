"""Texts to texts through any OpenAI-compatible endpoint. Knows no times and no files: only lines of text leave."""
