"""Translates lines of text through any OpenAI-compatible chat endpoint. No times and no file names are sent."""

from __future__ import annotations

from collections.abc import Iterator

from asr_server.engine.feature import Asked, Feature
from asr_server.engine.protocol import Option


def _options(asked: Asked) -> Iterator[Option]:
    settings = asked.settings
    if settings.openai_base_url and settings.translate_model:
        yield Option("translation", True, settings.translate_model, "by the endpoint at OPENAI_BASE_URL")
    else:
        yield Option("translation", False, "", "OPENAI_BASE_URL and TRANSLATE_MODEL are not both set")


FEATURE = Feature("translation", options=_options, server=f"{__name__}.route")
