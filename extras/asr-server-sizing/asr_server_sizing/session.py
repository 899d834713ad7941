"""A live session in simulated time: its requests, one at a time, as `live/machine/utterance.py` makes them."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from asr_server.schedule.job import Priority
from asr_server_sizing.batch import Work
from asr_server_sizing.profile import AUDIO_TOKENS_PER_S, PROMPT_TOKENS, Profile
from asr_server_sizing.speech import Ask, Asked

# Clients send audio in pieces of this length, as ours do; a server decides when one has arrived.
CHUNK_S = 0.1
# More than the rounding error of a division by it.
_EXACT = 1e-6
# A window of the encoder: the work on closed windows of an open utterance is kept for its next partial.
_WINDOW_S = 8.0
# The new speech of the partials whose passes were measured.
_MEASURED_PARTIAL_S = 0.45


def arrival_s(at_s: float) -> float:
    """Return when the piece has arrived that has this moment of the session's audio."""
    return math.ceil(at_s / CHUNK_S - _EXACT) * CHUNK_S


class Engine(Protocol):
    """The engine of a session."""

    def submit(self, work: Work, priority: Priority, seconds: float, on_done: Callable[[], None]) -> Callable[[], None]:
        """Queue a row of `seconds` of audio; `on_done` is called when it is done. The returned function cancels it."""


@dataclass(slots=True, eq=False)
class _Utterance:
    """An utterance of the session."""

    start_s: float
    asked: Asked
    answered_s: float = 0.0  # its audio in the last answer, from its start
    windows: int = 0  # closed windows that are kept
    final: bool = False  # the last answer was asked for as one that may be the last
    ended_at_s: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class _Request:
    utterance: _Utterance
    audio_s: float
    final: bool
    is_new: bool  # what it answers: one pass alone verifies what is known, and is not sent
    arrived_s: float  # its newest audio
    cancel: Callable[[], None]


@dataclass(slots=True)
class Lags:
    """The seconds that each answer took."""

    partials_s: list[float] = field(default_factory=list)  # of partials that are sent, from their newest audio
    finals_s: list[float] = field(default_factory=list)  # from the end of the utterance


class LiveSession:
    """Makes the requests of a session, with the audio that has arrived by then, in pieces of 100 ms.

    `now_s`: the session's time. `lags`: the record of its answers.
    """

    def __init__(
        self, profile: Profile, engine: Engine, now_s: Callable[[], float], chance: random.Random, lags: Lags
    ) -> None:
        self._profile, self._engine, self._now_s, self._chance, self._lags = profile, engine, now_s, chance, lags
        self._request: _Request | None = None
        self._ended: deque[_Utterance] = deque()
        self._open: _Utterance | None = None  # the utterance under way
        self._wanted = False  # a partial of it is wanted

    def on_ask(self, asked: Asked) -> None:
        """Make a request whose time has come."""
        utterance = self._open
        if utterance is None or utterance.start_s != asked.start_s:
            utterance = self._open = _Utterance(asked.start_s, asked)
        utterance.asked = asked
        if asked.ask is Ask.END:
            self._end(utterance)
        else:
            self._wanted = True
        self._submit_next()

    def _end(self, utterance: _Utterance) -> None:
        utterance.ended_at_s = self._now_s()
        self._open, self._wanted = None, False
        request, audio_s = self._request, utterance.asked.end_s - utterance.start_s
        if request is not None and request.utterance is utterance and request.audio_s != audio_s:
            request.cancel()
            self._request = None
        self._ended.append(utterance)
        self._deliver_known()

    def _deliver_known(self) -> None:
        """Deliver the finals of utterances whose audio was answered completely."""
        while self._ended and self._ended[0].answered_s == self._ended[0].asked.end_s - self._ended[0].start_s:
            self._lags.finals_s.append(self._now_s() - self._ended.popleft().ended_at_s)

    def _submit_next(self) -> None:
        if self._request is not None:
            return
        if self._ended:
            first = self._ended[0]
            self._submit(first, first.asked.end_s - first.start_s, final=True)
        elif self._wanted and (utterance := self._open) is not None:
            self._wanted = False
            in_pause = utterance.asked.ask is Ask.PAUSE
            end_s = utterance.asked.end_s if in_pause else math.floor(self._now_s() / CHUNK_S + _EXACT) * CHUNK_S
            self._submit(utterance, end_s - utterance.start_s, final=in_pause)

    def _submit(self, utterance: _Utterance, audio_s: float, *, final: bool) -> None:
        if audio_s <= utterance.answered_s and not final:
            return
        work = self._work(utterance, audio_s)
        priority = Priority.FINAL if final else Priority.PARTIAL
        cancel = self._engine.submit(work, priority, audio_s, self._on_done)
        arrived_s = arrival_s(utterance.start_s + audio_s)
        self._request = _Request(utterance, audio_s, final, work.passes > 1, arrived_s, cancel)

    def _work(self, utterance: _Utterance, audio_s: float) -> Work:
        """Return the work of a request. Kept windows are not run again; known text is verified with the prompt."""
        known_s, profile = utterance.answered_s, self._profile
        tokens = (audio_s - utterance.windows * _WINDOW_S) * AUDIO_TOKENS_PER_S + known_s * profile.tokens_per_s
        new_s = audio_s - known_s
        passes = profile.answer_passes(audio_s)
        if known_s:
            measured = self._chance.choice(profile.partial_passes)
            passes = min(passes, max(1, measured + round((new_s - _MEASURED_PARTIAL_S) * profile.tokens_per_s)))
        return Work(round(tokens) + PROMPT_TOKENS, passes)

    def _on_done(self) -> None:
        request = self._request
        assert request is not None, "cancelled requests have no end"
        self._request = None
        utterance = request.utterance
        utterance.answered_s = request.audio_s
        utterance.windows = 0 if request.final else int(request.audio_s // _WINDOW_S)
        if request.is_new and not (self._ended and self._ended[0] is utterance):
            self._lags.partials_s.append(self._now_s() - request.arrived_s)
        self._deliver_known()
        self._submit_next()
