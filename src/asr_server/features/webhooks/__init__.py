"""Webhooks: when a job with a `callback_url` has ended, its state is sent there, signed."""

from asr_server.engine.feature import Feature
from asr_server.server_feature import ServerHook

FEATURE = Feature("webhooks", extends=(ServerHook(f"{__name__}.webhooks"),))
