"""A live session's requests to the engines: partials to the fast one, finals to the accurate one, and word times."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from asr_server.audio.segmentation import SpeechSpan
from asr_server.core.audio import SAMPLE_RATE
from asr_server.core.errors import AsrError
from asr_server.core.transcript import Word
from asr_server.engine.protocol import EngineTraits, Finish, Hypothesis, Utterance, Written
from asr_server.live.machine.events import Final, ResultKind, Transcribe, TranscribeResult
from asr_server.live.session_stats import LiveMetrics
from asr_server.recordings.requests import WordTimes
from asr_server.recordings.span import (
    REACH,
    ROW_FAILURES,
    Ask,
    ContextCheck,
    Heard,
    is_invented,
    part_of,
    retry,
    rival,
    time_words,
)
from asr_server.schedule.job import Priority
from asr_server.text import scripts

if TYPE_CHECKING:
    from asr_server.engine.client import EngineClient, Transcription


@dataclass(slots=True)
class MeanTime:
    """The mean engine time of answers."""

    count: int = 0
    mean_s: float = 0.0

    def add(self, seconds: float) -> None:
        self.count += 1
        self.mean_s += (seconds - self.mean_s) / self.count


@dataclass(frozen=True, slots=True)
class Engines:
    """The engines for partials and for finals, and the metrics of live sessions."""

    fast: EngineClient  # makes partials of the default model; the same as `accurate` if there is one engine
    accurate: EngineClient  # makes finals of the default model
    metrics: LiveMetrics = field(default_factory=LiveMetrics)
    others: Mapping[str, EngineClient] = field(default_factory=dict)  # of further models by name
    times: dict[ResultKind, MeanTime] = field(default_factory=dict)
    check: ContextCheck = field(default_factory=ContextCheck)  # of answers to audio with a context

    def of(self, model: str, kind: ResultKind = ResultKind.FINAL) -> EngineClient:
        """Return the engine for a kind of request and a model, "" for the default model."""
        default = self.accurate if kind is ResultKind.FINAL else self.fast
        return self.others[model] if model else default

    def used_by(self, model: str) -> set[EngineClient]:
        return {self.of(model, kind) for kind in ResultKind}

    @property
    def traits(self) -> list[EngineTraits]:
        """The traits of all engines. A session may change its model, so its audio is cut to suit all of them."""
        return [engine.traits for engine in (self.fast, self.accurate, *self.others.values())]

    @property
    def separate(self) -> bool:
        return self.fast is not self.accurate


@dataclass(frozen=True, slots=True)
class LiveInference:
    """The requests of one session to its engines."""

    engines: Engines
    session: str
    timeout_s: float  # limit of each answer
    spoken: deque[Heard] = field(default_factory=lambda: deque(maxlen=REACH))  # the last finals, in order

    async def transcribe(self, request: Transcribe, priority: Priority) -> TranscribeResult:
        """Transcribe the request.

        A final that loops or does not end is transcribed again in halves, like a span of a recording. A final in an
        uncertain language is transcribed again in the session's language, unless words of it are committed.

        Raises the engine's error. Cancelling removes the work from the queue and the batch.
        """
        is_final = request.kind is ResultKind.FINAL
        engine = self.engines.of(request.model, request.kind)

        async def ask(utterance: Utterance) -> Transcription:
            deadline_s = engine.clock.now_s() + self.timeout_s
            return await engine.transcribe(utterance, priority=priority, deadline_s=deadline_s)

        utterance = Utterance(
            audio=request.audio,
            language=request.language,
            context=request.context if engine.traits.uses_context else "",
            draft=request.draft,
            session=f"{self.session}:{request.start_samples}",
            last=is_final,
            prefix=request.prefix,
        )
        if self.engines.separate and not request.model:
            utterance = _in_words(utterance, request)
        first = await ask(utterance)
        self.engines.times.setdefault(request.kind, MeanTime()).add(first.infer_s)
        answers = await retry(utterance, first, ask) if is_final else [first]
        if is_final and len(answers) == 1:
            answers = [await self._weighed(request, answers[0], utterance, ask)]
        check = self.engines.check
        checked = [await check.checked(part_of(utterance, answer), answer, ask) for answer in answers]
        hypotheses = [one.answer.hypothesis for one in checked]
        if is_final and not request.prefix and is_invented(hypotheses[0], request.peak_probability):
            return TranscribeResult(request.ticket, "")
        return _joined(request, hypotheses) if len(hypotheses) > 1 else _result(request, hypotheses[0])

    async def _weighed(
        self, request: Transcribe, first: Transcription, utterance: Utterance, ask: Ask
    ) -> Transcription:
        start_s = request.start_samples / SAMPLE_RATE
        heard = Heard(start_s, start_s + len(request.audio) / SAMPLE_RATE, first.hypothesis)
        while self.spoken and self.spoken[-1].start_s >= start_s:  # the same speech with less audio
            self.spoken.pop()
        other = rival(heard, self.spoken) if request.language is None and not request.prefix else None
        if other is not None:
            with suppress(*ROW_FAILURES):  # after a failure the first answer stays
                second = await ask(replace(utterance, draft=(), draft_text=None, languages=(other.language,)))
                if other.is_likelier(second.hypothesis, first.hypothesis):
                    first, heard = second, replace(heard, answer=second.hypothesis)
        self.spoken.append(heard)
        return first


def _in_words(utterance: Utterance, request: Transcribe) -> Utterance:
    """Return the utterance with texts instead of token ids, since the two engines have different tokens.

    Committed ids belong to the engine of the finals, which commits words.
    """
    text, committed = (Written(words, request.written_language) for words in (request.text, request.committed))
    if request.kind is ResultKind.FINAL:
        return replace(utterance, draft=(), draft_text=text if text.text else None)
    return replace(utterance, draft=(), prefix=(), draft_text=text if text.text else None, prefix_text=committed)


def _result(request: Transcribe, hypothesis: Hypothesis) -> TranscribeResult:
    return TranscribeResult(
        request.ticket,
        hypothesis.text,
        hypothesis.language,
        hypothesis.ids,
        hypothesis.offsets,
        hypothesis.logprobs,
        hypothesis.pieces,
        # A final that is still truncated after the retry is kept, since no better one will come.
        truncated=request.kind is ResultKind.PARTIAL and hypothesis.finish is not Finish.END,
    )


def _joined(request: Transcribe, halves: Sequence[Hypothesis]) -> TranscribeResult:
    text = scripts.join(half.text for half in halves)
    language = next((half.language for half in halves if half.language), "")
    return TranscribeResult(request.ticket, text, language, detached=True)


@dataclass(frozen=True, slots=True)
class WordTimestamps:
    """The words of an utterance whose final has been sent, in milliseconds of the session."""

    utterance: int
    words: tuple[Word, ...]


class FinalWordTimes:
    """Finds the word times of a session's finals and gives them to `send`. `engine_of`: returns a model's aligner.

    Holds the audio of one utterance only: earlier ones have their finals or were discarded.
    """

    def __init__(
        self, engine_of: Callable[[str], EngineClient], how: WordTimes, send: Callable[[WordTimestamps], None]
    ) -> None:
        self._engine_of = engine_of
        self._how = how
        self._send = send
        self._utterance = 0
        self._asked: dict[int, Transcribe] = {}  # of the parts of that utterance, by the start of their audio
        self._tasks: set[asyncio.Task[None]] = set()

    def on_request(self, request: Transcribe) -> None:
        """Keep the audio of a request, which begins where its utterance or part begins."""
        if self._how is not WordTimes.NONE:
            if request.utterance != self._utterance:
                self._utterance, self._asked = request.utterance, {}
            self._asked[request.start_samples] = request

    def on_final(self, final: Final) -> None:
        """Find the words of a final that has been sent."""
        if final.utterance != self._utterance:
            return
        asked, self._asked = self._asked, {}
        spoken = [
            (part.text, asked[max(begin for begin in asked if begin <= part.start_samples)])
            for part in final.parts
            if part.text.strip()
        ]
        if spoken:
            task = asyncio.create_task(self._find(final, spoken))
            self._tasks.add(task)  # asyncio itself holds a task only weakly
            task.add_done_callback(self._tasks.discard)

    async def wait(self) -> None:
        """Wait until the word times in progress have been sent."""
        if self._tasks:
            await asyncio.wait(set(self._tasks))

    def close(self) -> None:
        """Cancel all word times."""
        self._asked.clear()
        for task in self._tasks:
            task.cancel()

    async def _find(self, final: Final, spoken: list[tuple[str, Transcribe]]) -> None:
        words: list[Word] = []
        try:
            for text, request in spoken:
                regions = (request.speech,) if request.speech else ()
                span = SpeechSpan(request.start_samples, request.end_samples, request.audio, 1.0, regions)
                engine = self._engine_of(request.model)
                words += await time_words(engine, span, text, final.language, self._how, priority=Priority.INTERACTIVE)
        except AsrError:  # the server shuts down; the text has been sent
            return
        self._send(WordTimestamps(final.utterance, tuple(words)))
