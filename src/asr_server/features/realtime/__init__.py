"""OpenAI's Realtime protocol for transcription: sessions over `WS /v1/realtime`, and keys for browsers."""

from asr_server.engine.feature import Feature
from asr_server.server_feature import ServerHook

FEATURE = Feature("realtime", extends=(ServerHook(f"{__name__}.route"),))
