"""Transcripts as documents to read: Markdown and DOCX, in paragraphs with their times and speakers."""

from asr_server.engine.feature import Feature
from asr_server.server_feature import ServerHook

FEATURE = Feature("documents", extends=(ServerHook(f"{__name__}.route"),))
