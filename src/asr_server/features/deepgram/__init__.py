"""Deepgram's API for speech to text: `POST /v1/listen` for recordings and `WS /v1/listen` for live audio."""

from asr_server.engine.feature import Feature

FEATURE = Feature("deepgram", server=f"{__name__}.listen")
