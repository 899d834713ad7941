"""A prompt or hotwords that the model writes though nobody says them: such answers are made again without."""

from asr_server.engine.feature import Feature

FEATURE = Feature("hotwords", server=f"{__name__}.check")
