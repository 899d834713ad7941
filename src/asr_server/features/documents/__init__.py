"""Transcripts as readable documents: Markdown and DOCX, in paragraphs with their times and speakers."""

from asr_server.engine.feature import Feature

FEATURE = Feature("documents", server=f"{__name__}.route")
