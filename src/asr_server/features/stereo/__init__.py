"""Channels that may be people: each is transcribed by itself."""

from asr_server.engine.feature import Feature
from asr_server.server_feature import ServerHook

FEATURE = Feature("stereo", extends=(ServerHook(f"{__name__}.channels"),))
