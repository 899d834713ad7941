"""Live audio in Opus: a confined process decodes it before the session gets it."""

from asr_server.engine.feature import Feature
from asr_server.server_feature import ServerHook

FEATURE = Feature("live_opus", extends=(ServerHook(f"{__name__}.sockets"),))
