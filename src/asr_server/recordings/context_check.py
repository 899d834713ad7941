"""The check of answers that a prompt or hotwords may have changed. A feature has another one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asr_server.engine.client import Transcription
    from asr_server.engine.protocol import Utterance

# Transcribes an utterance: `EngineClient.transcribe` with its other arguments bound.
Ask = Callable[["Utterance"], Awaitable["Transcription"]]


@dataclass(frozen=True, slots=True)
class CheckedAnswer:
    """An answer, and what its check found."""

    answer: Transcription
    is_replaced: bool = False  # the first answer was words of the context alone; this one was made without it
    biased: frozenset[int] = frozenset()  # the numbers of its words that it has because of the context


class ContextCheck:
    """Checks the answers to utterances with a context. This one accepts all."""

    def is_doubtful(self, context: str, text: str) -> bool:
        """Return True if an answer that begins with this text may have been made of the context alone."""
        return False

    async def checked(
        self, utterance: Utterance, answer: Transcription, ask: Ask, *, is_sent: bool = False, marks: bool = False
    ) -> CheckedAnswer:
        """Return the answer to the utterance, or one without its context.

        `is_sent`: the text cannot be replaced any more. `marks`: `biased` is wanted, which may take another pass.
        Raises what `ask` raises; cancelling cancels what was asked.
        """
        return CheckedAnswer(answer)
