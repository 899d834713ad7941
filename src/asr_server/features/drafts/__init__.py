"""A smaller model drafts what the default model verifies: USE_SPECULATIVE. docs/run/engine-options.md is its page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from asr_server.engine.feature import Asked, Feature
from asr_server.engine.protocol import Option

if TYPE_CHECKING:
    from asr_server.engine.client import Drafting, EngineClient

_REASON = "its transcripts are drafts, which MODEL_ID verifies"


def _options(asked: Asked) -> Iterator[Option]:
    wanted = asked.settings.use_speculative
    yield Option("use_speculative", wanted, asked.settings.fast_model_id * wanted, _REASON if wanted else "not set")


def _drafting(client: EngineClient) -> Drafting:
    from asr_server.features.drafts.model_drafts import ModelDrafts

    return ModelDrafts(client)


FEATURE = Feature("drafts", options=_options, drafting=_drafting)
