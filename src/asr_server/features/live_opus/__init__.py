"""Live audio in Opus: a confined process decodes it before the session gets it."""

from asr_server.engine.feature import Feature

FEATURE = Feature("live_opus", server=f"{__name__}.sockets")
