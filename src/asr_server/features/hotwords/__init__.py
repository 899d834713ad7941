"""Finds a prompt or hotwords that the model writes although nobody says them, and transcribes again without them."""

from asr_server.engine.feature import Feature

FEATURE = Feature("hotwords", server=f"{__name__}.check")
