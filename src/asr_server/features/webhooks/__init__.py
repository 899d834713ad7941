"""Webhooks: when a job with a `callback_url` has ended, its signed state is sent to that URL."""

from asr_server.engine.feature import Feature

FEATURE = Feature("webhooks", server=f"{__name__}.webhooks")
