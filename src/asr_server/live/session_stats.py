"""Metrics of live sessions, and the log line of a session. Neither contains any text of the session."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from enum import StrEnum

from prometheus_client import CollectorRegistry, Counter, Histogram

from asr_server.core.audio import s_to_ms, samples_to_s
from asr_server.core.metrics import with_series
from asr_server.live.machine.events import Action, Ending, Final, Partial, ResetDone, UtteranceEnded
from asr_server.live.machine.utterance import AudioAccount

# The latest lags, for the percentiles of one session.
_LAGS_KEPT = 1_024
# Below 0.2 s nobody notices, above 2 s nobody waits.
_LIVE_S = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0)


class SessionOutcome(StrEnum):
    """The outcome of a live session."""

    CLOSED = "closed"  # the client ended it
    LOST = "lost"  # the connection broke, and nobody came back in time
    DRAINED = "drained"  # the server was stopped
    FAILED = "failed"  # a fault of the server


class EstimateResult(StrEnum):
    """The result of a request to estimate the end of a turn, for the metrics."""

    ESTIMATED = "estimated"
    SKIPPED = "skipped"  # too many wait
    FAILED = "failed"


class LiveMetrics:
    """Counters and histograms of the live sessions of one app. Used on the event loop."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.opened = Counter("asr_live_sessions_opened_total", "Started live sessions.", registry=registry)
        self.ended = Counter("asr_live_sessions_ended_total", "Ended live sessions.", ["outcome"], registry=registry)
        self.audio = Counter("asr_live_audio_seconds_total", "Audio of ended live sessions.", registry=registry)
        self.partials = Counter("asr_live_partials_total", "Partials of live sessions.", registry=registry)
        self.estimates = Counter(
            "asr_live_end_of_turn_total",
            "End-of-turn estimates: `estimated`, `skipped`, `failed`.",
            ["estimate"],
            registry=registry,
        )
        self.utterances = Counter(
            "asr_live_utterances_total", "Live utterances, by their end.", ["ending"], registry=registry
        )
        self.commit_lag = Histogram(
            "asr_live_commit_lag_seconds",
            "From the arrival of a word's audio to its commit.",
            registry=registry,
            buckets=_LIVE_S,
        )
        self.final = Histogram(
            "asr_live_final_seconds", "From the end of an utterance to its final.", registry=registry, buckets=_LIVE_S
        )
        with_series(self.ended, SessionOutcome)
        with_series(self.estimates, EstimateResult)
        with_series(self.utterances, [ending.value for ending in Ending])


class SessionStats:
    """The figures of one session. Updates the metrics too.

    `lag_s`: for a position in samples, the seconds since the sample before it arrived.
    """

    def __init__(self, metrics: LiveMetrics, lag_s: Callable[[int], float]) -> None:
        self.outcome = SessionOutcome.LOST
        self.utterances = self.partials = 0
        self._metrics = metrics
        self._lag_s = lag_s
        self._lags: deque[float] = deque(maxlen=_LAGS_KEPT)
        self.committed: dict[int, int] = {}  # characters, of utterances without a final
        self.stopped_s: dict[int, float] = {}
        metrics.opened.inc()

    def count(self, action: Action) -> None:
        match action:
            case Partial(utterance=number, committed=committed):
                self.partials += 1
                self._metrics.partials.inc()
                self._commit(action, number, len(committed))
            case UtteranceEnded(utterance=number, ending=ending) if action.start_samples < action.end_samples:
                self.utterances += 1
                self.stopped_s[number] = time.monotonic()
                self._metrics.utterances.labels(ending.value).inc()
            case Final(utterance=number, text=text):
                self._commit(action, number, len(text))
                self.committed.pop(number, None)
                if (stopped_s := self.stopped_s.pop(number, None)) is not None:
                    self._metrics.final.observe(time.monotonic() - stopped_s)
            case ResetDone(utterance=int(number)):
                self.committed.pop(number, None)

    def on_disconnect(self, *, clean: bool) -> None:
        """Note that the connection is gone. If the session has ended for another reason, its outcome stays."""
        if self.outcome in (SessionOutcome.CLOSED, SessionOutcome.LOST):
            self.outcome = SessionOutcome.CLOSED if clean else SessionOutcome.LOST

    def close(self, account: AudioAccount) -> dict[str, object]:
        """Count the end of the session, and return the fields of its log line."""
        audio_s = samples_to_s(account.received)
        self._metrics.ended.labels(self.outcome).inc()
        self._metrics.audio.inc(audio_s)
        return {
            "audio_s": round(audio_s, 2),
            "speech_s": round(samples_to_s(account.in_utterances), 2),
            "utterances": self.utterances,
            "partials": self.partials,
            "commit_p50_ms": _percentile_ms(self._lags, 0.50),
            "commit_p95_ms": _percentile_ms(self._lags, 0.95),
            "outcome": self.outcome.value,
        }

    def _commit(self, message: Partial | Final, number: int, committed: int) -> None:
        before = self.committed.get(number, 0)
        if committed <= before:
            return
        self.committed[number] = committed
        text, samples = message.text, message.end_samples - message.start_samples
        for end in _word_ends(text, before, committed):
            # An estimate from the word's place in the text: live words have no other times.
            lag_s = self._lag_s(message.start_samples + round(end / len(text) * samples))
            self._lags.append(lag_s)
            self._metrics.commit_lag.observe(lag_s)


def _word_ends(text: str, before: int, committed: int) -> list[int]:
    """Return where the newly committed words end in the text. Text without spaces counts as one word."""
    ends = [at for at in range(before + 1, committed) if text[at].isspace() and not text[at - 1].isspace()]
    return ends if text[committed - 1].isspace() else [*ends, committed]


def _percentile_ms(seconds: Sequence[float], share: float) -> int | None:
    """Return the percentile in milliseconds, or None for an empty sequence."""
    if not seconds:
        return None
    ordered = sorted(seconds)
    return s_to_ms(ordered[min(len(ordered) - 1, int(share * len(ordered)))])
