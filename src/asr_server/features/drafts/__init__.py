"""Answers of a smaller model as drafts."""
