"""What a realtime session finds on this server: its models and the settings of the live machine."""

from __future__ import annotations

from asr_server.api.deps import Services
from asr_server.api.realtime.config import House


def house_of(here: Services) -> House:
    """By the settings and the catalog."""
    rules = here.live.rules(use_voice=here.settings.asr_use_server_vad)
    return House(tuple(model.id for model in here.catalog.all()), rules)
