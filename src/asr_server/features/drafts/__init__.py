"""A smaller model drafts what the default model verifies: USE_SPECULATIVE. docs/run/engine-options.md is its page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from loguru import logger

from asr_server.core.audio import SAMPLE_RATE
from asr_server.core.errors import AsrError, EngineFailed, ShuttingDown
from asr_server.engine.feature import Asked, Feature
from asr_server.engine.protocol import Option

if TYPE_CHECKING:
    from asr_server.engine.client import EngineClient, Transcription
    from asr_server.engine.protocol import Hypothesis, Utterance
    from asr_server.schedule.job import Job

_REASON = "its transcripts are drafts, which MODEL_ID verifies"


def _options(asked: Asked) -> Iterator[Option]:
    wanted = asked.settings.use_speculative
    yield Option("use_speculative", wanted, asked.settings.fast_model_id * wanted, _REASON if wanted else "not set")


class ModelDrafts:
    """Implements `engine.client.Drafting` with the transcripts of a smaller model."""

    def __init__(self, client: EngineClient) -> None:
        self._client = client
        self.spans = self._steps = self._saved = 0

    def helps(self, utterance: Utterance) -> bool:
        """True if a draft may help: not if the utterance has one already, is sampled, or is a partial, and not in a
        language or of a length that the smaller model does not know."""
        traits = self._client.traits
        has_draft = bool(utterance.draft or utterance.draft_text)
        is_partial = utterance.session is not None and not utterance.last
        known = utterance.language is None or utterance.language in traits.languages
        fits = len(utterance.audio) <= traits.max_audio_s * SAMPLE_RATE
        return known and fits and not (has_draft or is_partial or utterance.temperature > 0)

    async def draft(self, job: Job[Hypothesis], utterance: Utterance) -> Transcription | None:
        """Return what the smaller model says, asked with the priority of `job`; None if it fails, since a draft is not
        needed.

        Raises `ShuttingDown` and `EngineFailed`.
        """
        asked = replace(utterance, stream=False, session=None, last=False, prefix=(), prefix_text=None)
        try:
            return await self._client.transcribe(asked, priority=job.priority, deadline_s=job.deadline_s)
        except (ShuttingDown, EngineFailed):
            raise
        except AsrError as error:
            logger.warning("no draft", code=error.code, reason=error.message)
            return None

    def note(self, answer: Hypothesis) -> None:
        """An answer that had a draft. Without one it takes a step for each token, and one for its end."""
        self.spans += 1
        self._steps += len(answer.ids) + 1
        self._saved += len(answer.ids) + 1 - answer.passes

    @property
    def saved(self) -> float:
        """Return the share of decode steps that was saved so far."""
        return self._saved / max(1, self._steps)


FEATURE = Feature("drafts", options=_options, drafting=ModelDrafts)
