"""The requests of a live session put to the engine: partials to the fast one, finals to the accurate one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from asr_server.engine.protocol import Finish, Hypothesis, Utterance
from asr_server.live.events import ResultKind, Transcribe, TranscribeResult
from asr_server.scheduling.job import Priority
from asr_server.service.live_session.session_stats import LiveObserver
from asr_server.service.retry import retry
from asr_server.text import joining

if TYPE_CHECKING:
    from asr_server.engine.client import EngineClient, Transcription


@dataclass(frozen=True, slots=True)
class Engines:
    """The engine for partials and the engine for finals, and who counts them. With one model both are one object."""

    fast: EngineClient
    accurate: EngineClient
    observer: LiveObserver = field(default_factory=LiveObserver)

    @property
    def separate(self) -> bool:
        """Whether partials come from another engine than finals."""
        return self.fast is not self.accurate


@dataclass(frozen=True, slots=True)
class LiveInference:
    """For one session; `timeout_s` is the time limit of each answer."""

    engines: Engines
    session: str
    timeout_s: float

    async def transcribe(self, request: Transcribe, priority: Priority) -> TranscribeResult:
        """The result. A final that loops or finds no end is tried again in halves, as a span of a recording is.

        Raises what the engine raised. Cancelling takes the work out of the queue and out of the batch.
        """
        is_final = request.kind is ResultKind.FINAL
        engine = self.engines.accurate if is_final else self.engines.fast

        async def ask(utterance: Utterance) -> Transcription:
            deadline_s = engine.clock.now_s() + self.timeout_s
            return await engine.transcribe(utterance, priority=priority, deadline_s=deadline_s)

        utterance = Utterance(
            audio=request.audio,
            language=request.language,
            context=request.context,
            draft=request.draft,
            session=f"{self.session}:{request.start_samples}",
            last=is_final,
            prefix=request.prefix,
        )
        first = await ask(utterance)
        if is_final:
            answers = await retry(utterance, first, ask)
            if len(answers) > 1:
                return _joined(request, [answer.transcription.hypothesis for answer in answers])
        return _result(request, first.hypothesis)


def _result(request: Transcribe, hypothesis: Hypothesis) -> TranscribeResult:
    return TranscribeResult(
        request.ticket,
        hypothesis.text,
        hypothesis.language,
        hypothesis.ids,
        hypothesis.offsets,
        hypothesis.logprobs,
        hypothesis.pieces,
        # A final that is still truncated after the retry is kept: there is no better one to wait for.
        truncated=request.kind is ResultKind.PARTIAL and hypothesis.finish is not Finish.END,
    )


def _joined(request: Transcribe, halves: Sequence[Hypothesis]) -> TranscribeResult:
    text = joining.join(half.text for half in halves)
    language = next((half.language for half in halves if half.language), "")
    return TranscribeResult(request.ticket, text, language, detached=True)
