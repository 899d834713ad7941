"""OpenAI's Realtime protocol for transcription: sessions over `WS /v1/realtime`, and keys for browsers."""

from asr_server.engine.feature import Feature

FEATURE = Feature("realtime", server=f"{__name__}.route")
