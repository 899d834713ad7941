"""The options of a live session, and the resources that all live sessions share."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from asr_server.core.audio import SAMPLE_RATE
from asr_server.net.shared_bytes import SharedBytes
from asr_server.recordings.requests import WordTimes
from asr_server.schedule.job import Priority

if TYPE_CHECKING:
    from asr_server.features.handover.handover import HandoverOptions
    from asr_server.features.speakers.diarization.live_speakers import LiveSpeakerSource
    from asr_server.features.speakers.voices import Voice, VoiceStore
    from asr_server.live.end_of_turn import EndOfTurnEstimator
    from asr_server.live.inference import Engines
    from asr_server.live.machine.events import TurnConfig
    from asr_server.schedule.quota import Place


@dataclass(frozen=True, slots=True)
class LiveSessionOptions:
    """How a session begins.

    `words`: whether and how the words of finals get their times. `owner`: whose it is, "" where there are no keys.
    `place`: in the quota of its caller, which a session keeps while it waits for its client. `speakers`: whether they
    are told apart. `first_speaker`: how many letters others had before, in another process. `handover`: of a session
    that may move to another server. `began_s`: when its audio began, by the monotonic clock, where that was before the
    session.
    """

    rules: TurnConfig
    input_rate_hz: int = SAMPLE_RATE
    words: WordTimes = WordTimes.NONE
    owner: str = ""
    place: Place | None = None
    speakers: bool = False
    first_speaker: int = 0
    handover: HandoverOptions | None = None
    began_s: float | None = None
    turn_events: bool = False  # the client is told when a turn has probably ended


@dataclass(frozen=True, slots=True)
class Shared:
    """What all sessions of the process share. `timeout_s`: the time limit of each answer. `speakers`: what tells them
    apart; None where nothing does. `voices`: those that have names; None where none are stored.

    `paces`: who has one of these may process a slice of audio, of the sessions that send faster than one speaks, by
    their priority; they leave half of the time to others. `detection`: the thread of voice detection.
    """

    engines: Engines
    timeout_s: float
    speakers: LiveSpeakerSource | None = None
    voices: VoiceStore | None = None
    end_of_turn: EndOfTurnEstimator | None = None  # None where the end of a turn is not estimated
    memory: SharedBytes = field(default_factory=SharedBytes)
    detection: Executor = field(default_factory=lambda: ThreadPoolExecutor(1, "voice-detection"))
    paces: Mapping[Priority, asyncio.Lock] = field(
        default_factory=lambda: {Priority.INTERACTIVE: asyncio.Lock(), Priority.BULK: asyncio.Lock()}
    )

    def voices_of(self, owner: str) -> Callable[[], Awaitable[list[Voice]]] | None:
        """Reads the owner's voices that can be compared with those of live speakers."""
        if self.speakers is None or self.voices is None:
            return None
        return functools.partial(self.voices.comparable, owner, self.speakers.voice_model)
