"""Figures of live sessions: what is counted while one runs, and the line that is left of it. No word of its text."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from enum import StrEnum

from asr_server.core.audio import s_to_ms, samples_to_s
from asr_server.live.events import Action, Ending, Final, Partial, ResetDone, UtteranceEnded
from asr_server.live.session import AudioAccount

# For the percentiles of one session; the latest are kept.
_LAGS_KEPT = 1_024


class SessionOutcome(StrEnum):
    """How a live session ended."""

    CLOSED = "closed"  # the client ended it
    LOST = "lost"  # the connection broke, and nobody came back in time
    DRAINED = "drained"  # the server was stopped
    FAILED = "failed"  # a fault of ours


class LiveObserver:
    """Watches nothing; to be overridden. All of it is called on the event loop and must return at once."""

    def opened(self) -> None:
        """A session began; a resumed one began before."""

    def partial(self) -> None:
        """A partial was made."""

    def committed(self, lag_s: float) -> None:
        """A word was committed, so long after its audio had arrived."""

    def stopped(self, ending: Ending) -> None:
        """An utterance has all its audio; one without any is not told of."""

    def final(self, after_s: float) -> None:
        """The final of an utterance was made, so long after its end was found."""

    def ended(self, outcome: SessionOutcome, heard_s: float) -> None:
        """A session is over; it got so many seconds of audio."""


class SessionStats:
    """What one session has done. Tells the watch of it as it happens.

    `lag_s`: seconds since the sample before a position arrived.
    """

    def __init__(self, watch: LiveObserver, lag_s: Callable[[int], float]) -> None:
        self.outcome = SessionOutcome.LOST
        self.utterances = self.partials = 0
        self._watch = watch
        self._lag_s = lag_s
        self._lags: deque[float] = deque(maxlen=_LAGS_KEPT)
        self._committed: dict[int, int] = {}  # characters, of utterances without a final
        self._stopped_s: dict[int, float] = {}
        watch.opened()

    def note(self, effect: Action) -> None:
        """Count what the machine has just asked for."""
        match effect:
            case Partial(utterance=number, committed=committed):
                self.partials += 1
                self._watch.partial()
                self._commit(effect, number, len(committed))
            case UtteranceEnded(utterance=number, ending=ending) if effect.start_samples < effect.end_samples:
                self.utterances += 1
                self._stopped_s[number] = time.monotonic()
                self._watch.stopped(ending)
            case Final(utterance=number, text=text):
                self._commit(effect, number, len(text))
                self._committed.pop(number, None)
                if (stopped_s := self._stopped_s.pop(number, None)) is not None:
                    self._watch.final(time.monotonic() - stopped_s)
            case ResetDone(utterance=int(number)):
                self._committed.pop(number, None)

    def left(self, *, clean: bool) -> None:
        """The connection is gone; what ended the session before that stays the reason."""
        if self.outcome in (SessionOutcome.CLOSED, SessionOutcome.LOST):
            self.outcome = SessionOutcome.CLOSED if clean else SessionOutcome.LOST

    def close(self, account: AudioAccount) -> dict[str, object]:
        """The session is over: what its log line says."""
        heard_s = samples_to_s(account.received)
        self._watch.ended(self.outcome, heard_s)
        return {
            "audio_s": round(heard_s, 2),
            "speech_s": round(samples_to_s(account.in_utterances), 2),
            "utterances": self.utterances,
            "partials": self.partials,
            "commit_p50_ms": _percentile_ms(self._lags, 0.50),
            "commit_p95_ms": _percentile_ms(self._lags, 0.95),
            "outcome": self.outcome.value,
        }

    def _commit(self, effect: Partial | Final, number: int, committed: int) -> None:
        before = self._committed.get(number, 0)
        if committed <= before:
            return
        self._committed[number] = committed
        text = effect.text
        for end in _word_ends(text, before, committed):
            lag_s = self._lag_s(_spoken_samples(effect, end / len(text)))
            self._lags.append(lag_s)
            self._watch.committed(lag_s)


def _spoken_samples(effect: Partial | Final, share: float) -> int:
    """About where a word ends in the audio: by its place in the text. Nothing better is known of a live word."""
    return effect.start_samples + round(share * (effect.end_samples - effect.start_samples))


def _word_ends(text: str, before: int, committed: int) -> list[int]:
    """Where the words end that were committed now; text without blanks counts as one word."""
    ends = [at for at in range(before + 1, committed) if text[at].isspace() and not text[at - 1].isspace()]
    return ends if text[committed - 1].isspace() else [*ends, committed]


def _percentile_ms(seconds: Sequence[float], share: float) -> int | None:
    """None of nothing."""
    if not seconds:
        return None
    ordered = sorted(seconds)
    return s_to_ms(ordered[min(len(ordered) - 1, int(share * len(ordered)))])
