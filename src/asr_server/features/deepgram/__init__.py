"""Deepgram's API for speech to text: `POST /v1/listen` for recordings and `WS /v1/listen` for live audio."""

from asr_server.engine.feature import Feature
from asr_server.server_feature import ServerHook

FEATURE = Feature("deepgram", extends=(ServerHook(f"{__name__}.listen"),))
