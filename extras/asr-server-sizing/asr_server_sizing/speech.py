"""Computes the requests of a live session from the times at which its speaker speaks, without answers. Pure.

The times are those of `live/machine/session.py`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from asr_server.audio.segmentation import MIN_SPEECH_MS
from asr_server.core.audio import FRAME_MS, PAD_MS, SAMPLE_RATE, ms_to_frames

if TYPE_CHECKING:
    from asr_server.core.settings import Settings

# Seconds [from, to) of a session in which there is speech, ordered and disjoint.
Regions = Sequence[tuple[float, float]]

# An utterance is shorter than this in half of all cases, by a log-normal distribution.
_MEDIAN_UTTERANCE_S = 4.0
_SPREAD = 0.8
# The least pause between two utterances of one person, when nobody else speaks.
_LEAST_PAUSE_S = 0.6


@dataclass(frozen=True, slots=True)
class LiveRules:
    """The settings of live sessions, in seconds."""

    partial_every_s: float
    min_silence_s: float
    prefix_s: float
    tail_s: float
    max_utterance_s: float

    @classmethod
    def of(cls, settings: Settings) -> LiveRules:
        """Return the rules that the server would use: it decides once a frame."""
        return cls(
            partial_every_s=_whole_frames_s(1000 * settings.ws_buffer_size / 2 / SAMPLE_RATE),
            min_silence_s=_whole_frames_s(settings.vad_min_silence_ms),
            prefix_s=_whole_frames_s(PAD_MS),
            tail_s=_whole_frames_s(min(PAD_MS, settings.vad_min_silence_ms)),
            max_utterance_s=settings.ws_utterance_max_s,
        )


def _whole_frames_s(duration_ms: float) -> float:
    return ms_to_frames(duration_ms) * FRAME_MS / 1000


class Ask(Enum):
    """The kinds of requests: text of an open utterance; of one in a pause, which may be its last; the end of one."""

    PARTIAL = "partial"
    PAUSE = "pause"
    END = "end"


@dataclass(frozen=True, slots=True)
class Asked:
    """A request of a session. Times are seconds of the session."""

    at_s: float
    ask: Ask
    start_s: float  # of the utterance
    end_s: float  # of its audio


def asks(regions: Regions, rules: LiveRules) -> list[Asked]:
    """Return all requests of a session, in order."""
    found: list[Asked] = []
    start_s: float | None = None
    free_s = fresh_s = 0.0  # where the last utterance ended; new speech since the last request
    for number, (speech_s, end_s) in enumerate(regions):
        at_s = speech_s
        if start_s is None:
            start_s = max(free_s, speech_s - rules.prefix_s)
            fresh_s = 0.0
        while True:
            due_s = max(at_s + rules.partial_every_s - fresh_s, speech_s + _whole_frames_s(MIN_SPEECH_MS))
            full_s = start_s + rules.max_utterance_s
            if min(due_s, full_s) >= end_s:
                break
            if full_s <= due_s:
                found.append(Asked(full_s, Ask.END, start_s, full_s))
                start_s, at_s, fresh_s = full_s, full_s, 0.0
            else:
                found.append(Asked(due_s, Ask.PARTIAL, start_s, due_s))
                at_s, fresh_s = due_s, 0.0
        fresh_s += end_s - at_s
        quiet_s = regions[number + 1][0] - end_s if number + 1 < len(regions) else rules.min_silence_s
        if quiet_s >= rules.tail_s:
            found.append(Asked(end_s + rules.tail_s, Ask.PAUSE, start_s, end_s + rules.tail_s))
            fresh_s = 0.0
        if quiet_s >= rules.min_silence_s:
            free_s = end_s + rules.tail_s
            found.append(Asked(end_s + rules.min_silence_s, Ask.END, start_s, free_s))
            start_s = None
    return found


def conversation(chance: random.Random, duration_s: float, voiced: float) -> list[tuple[float, float]]:
    """Return the regions of someone who speaks for the part `voiced` of the time, from a moment in the middle on.

    Utterances have many lengths, and pauses a mean length that fits.
    """
    mean_s = _MEDIAN_UTTERANCE_S * math.exp(_SPREAD**2 / 2)
    pause_s = max(0.0, mean_s * (1 / voiced - 1) - _LEAST_PAUSE_S)
    at_s = -chance.random() * (mean_s + _LEAST_PAUSE_S + pause_s)
    regions: list[tuple[float, float]] = []
    while at_s < duration_s:
        speech_s = chance.lognormvariate(math.log(_MEDIAN_UTTERANCE_S), _SPREAD)
        begin_s, end_s = max(0.0, at_s), min(duration_s, at_s + speech_s)
        if end_s > begin_s:
            regions.append((begin_s, end_s))
        at_s += speech_s + _LEAST_PAUSE_S + (chance.expovariate(1 / pause_s) if pause_s else 0.0)
    return regions
