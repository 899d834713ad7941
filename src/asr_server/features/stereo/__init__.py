"""Channels that may belong to different people: each is transcribed by itself."""

from asr_server.engine.feature import Feature

FEATURE = Feature("stereo", server=f"{__name__}.channels")
