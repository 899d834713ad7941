"""What a realtime session finds on this server: its models and the settings of the live machine."""

from __future__ import annotations

from asr_server.api.dependencies import Services
from asr_server.api.realtime.config import ServerDefaults


def server_defaults(services: Services) -> ServerDefaults:
    """By the settings and the catalog."""
    rules = services.live.rules(use_voice=services.settings.asr_use_server_vad)
    return ServerDefaults(tuple(model.id for model in services.catalog.all()), rules)
