"""What the engine answers to a live session. A final on which the model loops is made again in halves, as in files."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from asr_server.engine.client import EngineClient, Transcription
from asr_server.engine.protocol import Finish, Hypothesis, Utterance
from asr_server.live.events import ResultKind, Transcribe, TranscribeResult
from asr_server.scheduling.job import Priority
from asr_server.service.live_session.session_stats import LiveObserver
from asr_server.service.retry import retry
from asr_server.text import joining

if TYPE_CHECKING:
    from asr_server.scheduling.thread import EngineThread


@dataclass(frozen=True, slots=True)
class Engines:
    """Who makes partials and who makes finals (with one model both are the same), and who counts them."""

    fast: EngineThread
    accurate: EngineThread
    watch: LiveObserver = field(default_factory=LiveObserver)

    def of(self, kind: ResultKind) -> EngineThread:
        """The engine for this kind of answer."""
        return self.fast if kind is ResultKind.PARTIAL else self.accurate


@dataclass(frozen=True, slots=True)
class LiveInference:
    """For one session; `timeout_s` is the time limit of each job."""

    engines: Engines
    session: str
    timeout_s: float

    async def to(self, asked: Transcribe) -> TranscribeResult:
        """The answer. Raises what the engine raised; cancelling takes the work out of the queue and the batch."""
        utterance = Utterance(
            audio=asked.audio,
            language=asked.language,
            context=asked.context,
            draft=asked.draft,
            session=f"{self.session}:{asked.utterance}",
            last=asked.kind is ResultKind.FINAL,
            prefix=asked.prefix,
        )
        ask = partial(self._transcribe, asked.kind)
        first = await ask(utterance)
        if asked.kind is ResultKind.FINAL:
            answers = await retry(utterance, first, ask)
            if len(answers) > 1:
                return _joined(asked, [answer.transcription.hypothesis for answer in answers])
        said = first.hypothesis
        return TranscribeResult(
            asked.ticket,
            said.text,
            said.language,
            said.ids,
            said.offsets,
            said.logprobs,
            said.pieces,
            truncated=asked.kind is ResultKind.PARTIAL and said.finish is not Finish.END,
        )

    async def _transcribe(self, kind: ResultKind, utterance: Utterance) -> Transcription:
        engine = EngineClient(self.engines.of(kind))
        return await engine.transcribe(utterance, priority=Priority.LIVE, deadline_s=time.monotonic() + self.timeout_s)


def _joined(asked: Transcribe, halves: Sequence[Hypothesis]) -> TranscribeResult:
    text = joining.join(half.text for half in halves)
    language = next((half.language for half in halves if half.language), "")
    return TranscribeResult(asked.ticket, text, language, detached=True)
