"""A discrete-event simulation of replicas under a load: the lags of answers, refusals, and the load of engines.

Live sessions go to the replica with the fewest of them, recordings to that with the least audio waiting.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from asr_server.core.errors import Overloaded
from asr_server_sizing import speech
from asr_server_sizing.profile import Profile
from asr_server_sizing.recording import Recording
from asr_server_sizing.replica import Events, HostCosts, Limits, Replica
from asr_server_sizing.session import CHUNK_S, Lags, LiveSession, arrival_s
from asr_server_sizing.speech import LiveRules, Regions

# Seconds of audio in a span, as the pipeline cuts a recording.
_SPAN_S = 30.0


@dataclass(frozen=True, slots=True)
class Speaker:
    """A live session that is opened at `at_s` and ends with its last region."""

    at_s: float
    regions: Regions


@dataclass(frozen=True, slots=True)
class Upload:
    """A recording that comes at `at_s`, with the lengths of its spans."""

    at_s: float
    spans_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Trace:
    """All work that comes within `duration_s` seconds. Work that ends before `warm_up_s` is in no figure."""

    duration_s: float
    warm_up_s: float
    speakers: Sequence[Speaker] = ()
    uploads: Sequence[Upload] = ()


@dataclass(frozen=True, slots=True)
class Load:
    """A steady load of live sessions, and of recordings that come at random."""

    live: int = 0  # sessions at any time
    voiced: float = 0.5  # the part of the time in which people speak in them
    recordings_s_per_s: float = 0.0  # seconds of audio of recordings in a second
    recording_s: float = 300.0  # the length of each recording


@dataclass(frozen=True, slots=True)
class Servers:
    """Replicas that are all alike."""

    replicas: int
    profile: Profile
    rules: LiveRules
    host: HostCosts = field(default_factory=HostCosts)
    limits: Limits = field(default_factory=Limits)


@dataclass(slots=True)
class Outcome:
    """The figures of a simulation."""

    lags: Lags = field(default_factory=Lags)  # of live answers
    uploads_s: list[float] = field(default_factory=list)  # from the arrival of a recording to its end
    refused: Counter[str] = field(default_factory=Counter)  # by kind
    busy: float = 0.0  # the part of the time in which the engines were in steps
    answered_s_per_s: float = 0.0  # seconds of recordings in a second
    came_s: float = 0.0  # audio of all recordings that came
    waiting_s: float = 0.0  # the part of it that was not answered at the end


def steady(load: Load, duration_s: float, warm_up_s: float, seed: int = 1) -> Trace:
    """Return a load as a trace, the same for the same seed."""
    chance = random.Random(seed)
    whole_s = warm_up_s + duration_s
    # Not all at once: the pieces of all sessions would arrive at the same moments.
    speakers = [
        Speaker(chance.uniform(0, CHUNK_S), speech.conversation(chance, whole_s, load.voiced)) for _ in range(load.live)
    ]
    return Trace(whole_s, warm_up_s, speakers, list(_uploads(load, whole_s, chance)))


def _uploads(load: Load, whole_s: float, chance: random.Random) -> Iterator[Upload]:
    if load.recordings_s_per_s <= 0:
        return
    full, rest_s = divmod(load.recording_s, _SPAN_S)
    spans_s = (_SPAN_S,) * int(full) + ((rest_s,) if rest_s else ())
    at_s = chance.expovariate(load.recordings_s_per_s / load.recording_s)
    while at_s < whole_s:
        yield Upload(at_s, spans_s)
        at_s += chance.expovariate(load.recordings_s_per_s / load.recording_s)


def simulate(servers: Servers, trace: Trace, seed: int = 1) -> Outcome:
    """Return the outcome of a trace. The same arguments give the same outcome."""
    return _Run(servers, trace, random.Random(seed)).outcome()


class _Run:
    def __init__(self, servers: Servers, trace: Trace, chance: random.Random) -> None:
        self._servers, self._trace, self._chance = servers, trace, chance
        self._events = Events()
        self._replicas = [
            Replica(self._events, servers.profile, servers.host, servers.limits) for _ in range(servers.replicas)
        ]
        self._found, self._answered_s = Outcome(), 0.0

    def outcome(self) -> Outcome:
        """Let the time of the trace pass, and return the outcome."""
        trace, events = self._trace, self._events
        recordings_s = sum(sum(upload.spans_s) for upload in trace.uploads)
        for replica in self._replicas:
            replica.recordings_s_per_s = recordings_s / trace.duration_s / len(self._replicas)
        for speaker in trace.speakers:
            events.at(speaker.at_s, partial(self._open, speaker))
        for upload in trace.uploads:
            events.at(upload.at_s, partial(self._upload, upload))
        events.run(trace.warm_up_s)
        busy_s = sum(replica.busy_s for replica in self._replicas)
        self._found, self._answered_s = self._forget(), 0.0
        events.run(trace.duration_s)
        measured_s = trace.duration_s - trace.warm_up_s
        busy_s = sum(replica.busy_s for replica in self._replicas) - busy_s
        self._found.busy = busy_s / measured_s / len(self._replicas)
        self._found.answered_s_per_s = self._answered_s / measured_s
        self._found.came_s = recordings_s
        self._found.waiting_s = sum(replica.admission.held_s for replica in self._replicas)
        return self._found

    def _forget(self) -> Outcome:
        """Forget the figures of the warm-up. Sessions go on with the same lists, which are emptied."""
        self._found.lags.partials_s.clear()
        self._found.lags.finals_s.clear()
        self._found.uploads_s.clear()
        self._found.refused.clear()
        return self._found

    def _open(self, speaker: Speaker) -> None:
        replica = min(self._replicas, key=lambda replica: replica.sessions)
        try:
            place = replica.open_session()
        except Overloaded:
            self._found.refused["live"] += 1
            return
        began_s, events = speaker.at_s, self._events
        session = LiveSession(
            self._servers.profile, replica, lambda: events.now_s - began_s, self._chance, self._found.lags
        )
        for asked in speech.asks(speaker.regions, self._servers.rules):
            events.at(began_s + arrival_s(asked.at_s), partial(session.on_ask, asked))
        for begin_s, end_s in speaker.regions:
            events.at(began_s + begin_s, partial(self._speaks, replica, 1))
            events.at(began_s + end_s, partial(self._speaks, replica, -1))
        if speaker.regions:
            ends_s = arrival_s(speaker.regions[-1][1] + self._servers.rules.min_silence_s)
            events.at(began_s + ends_s, place.close)

    @staticmethod
    def _speaks(replica: Replica, people: int) -> None:
        replica.speaking += people

    def _upload(self, upload: Upload) -> None:
        replica = min(self._replicas, key=lambda replica: replica.admission.held_s)
        recording = Recording(self._servers.profile, replica, upload.spans_s, partial(self._answered, upload))
        if not recording.start():
            self._found.refused["recordings"] += 1

    def _answered(self, upload: Upload) -> None:
        self._found.uploads_s.append(self._events.now_s - upload.at_s)
        self._answered_s += sum(upload.spans_s)
