"""The API of whisper-asr-webservice, as Bazarr and others call it. docs/start/migration.md has its routes."""

from asr_server.engine.feature import Feature

FEATURE = Feature("asr_webservice", server=f"{__name__}.route")
