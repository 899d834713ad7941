"""A prompt or hotwords that the model writes though nobody says them: such answers are made again without."""

from asr_server.engine.feature import Feature
from asr_server.server_feature import ServerHook

FEATURE = Feature("hotwords", extends=(ServerHook(f"{__name__}.check"),))
