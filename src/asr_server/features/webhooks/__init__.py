"""Webhooks: when a job with a `callback_url` has ended, its state is sent there, signed."""

from asr_server.engine.feature import Feature

FEATURE = Feature("webhooks", server=f"{__name__}.webhooks")
