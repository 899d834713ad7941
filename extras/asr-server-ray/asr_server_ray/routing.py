"""Chooses the engine replica for a row. Pure but for a lock, since two threads use it.

The rows of a live session go to the replica that has the work on its closed audio; if that has ended, to another that
every app would choose, by rendezvous hashing. Rows of recordings go to the replica with the least audio under way.
"""

from __future__ import annotations

import hashlib
import threading
from collections import Counter, OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from asr_server.core.audio import SAMPLE_RATE
from asr_server_ray import apps
from asr_server_ray.apps import RunningApps
from asr_server_ray.messages import Address, ReplicaStats, RowCall

# Live sessions whose replica is remembered; beyond, those that were silent for longest are routed as new ones.
_STREAMS_KEPT = 16_384


@dataclass(slots=True, eq=False)
class _Replica:
    """One replica."""

    stats: ReplicaStats
    streams: int = 0  # live sessions that fit
    own_s: float = 0.0  # seconds of audio that this app has there
    is_suspect: bool = False  # a row broke off there, and it has published nothing since

    @property
    def waiting_s(self) -> float:
        """Seconds of audio under way there. Those of other apps are known a moment later, when they are published."""
        return max(self.own_s, self.stats.waiting_s)


@dataclass(frozen=True, slots=True)
class FleetStreams:
    """Live sessions on all replicas together."""

    fit: int
    of_others: int  # those of other apps
    placed: int  # those of this app
    free: int  # how many more the replicas can take, in all


class Routing:
    """The replicas that run, as this app knows them, and what it has sent to each."""

    def __init__(self, running: RunningApps | None = None) -> None:
        self._lock = threading.Lock()
        self._apps = running or RunningApps()
        self._replicas: dict[str, _Replica] = {}
        self._of_stream: OrderedDict[str, str] = OrderedDict()
        self._placed: Counter[str] = Counter()  # the values of `_of_stream`
        self._sent: dict[int, tuple[str, float]] = {}

    @property
    def stats(self) -> Mapping[str, ReplicaStats]:
        """The figures as last published, by replica."""
        with self._lock:
            return {name: replica.stats for name, replica in self._replicas.items()}

    def update(self, stats: Mapping[str, ReplicaStats]) -> None:
        """Note the replicas that run now; others do not."""
        with self._lock:
            before, self._replicas = self._replicas, {}
            for name, published in stats.items():
                replica = before.get(name) or _Replica(published)
                if replica.stats != published:
                    replica.stats, replica.is_suspect = published, False
                self._replicas[name] = replica
            measured = [one.capacity.streams for one in stats.values() if one.capacity.streams_measured]
            for replica in self._replicas.values():
                capacity = replica.stats.capacity
                is_guess = bool(measured) and not capacity.streams_measured
                # The replicas run the same model, so the others know better.
                replica.streams = sum(measured) // len(measured) if is_guess else capacity.streams

    @property
    def streams(self) -> FleetStreams:
        """The live sessions as known now. A replica that broke off a row takes none."""
        with self._lock:
            names = [name for name, replica in self._replicas.items() if not replica.is_suspect]
            return FleetStreams(
                fit=sum(self._replicas[name].streams for name in names),
                of_others=sum(self._sessions_of_others(name) for name in names),
                placed=sum(self._placed[name] for name in names),
                free=sum(max(0, self._free_streams(name)) for name in names),
            )

    def keep_streams(self, opened: Collection[str]) -> list[str]:
        """Forget all live sessions but these. Returns those that were forgotten."""
        with self._lock:
            ended = [stream for stream in self._of_stream if stream not in opened]
            for stream in ended:
                self._forget(stream)
            return ended

    def choose(self, call: RowCall) -> Address | None:
        """Return the replica for a row, which counts as sent there, or None while none has published its address."""
        audio_s = len(call.item.audio) / SAMPLE_RATE
        with self._lock:
            self._done(call)
            if (name := self._chosen(call.stream)) is None:
                return None
            replica = self._replicas[name]
            self._sent[call.number] = name, audio_s
            replica.own_s += audio_s
            if call.stream:
                self._forget(call.stream)
                self._of_stream[call.stream] = name
                self._placed[name] += 1
                if len(self._of_stream) > _STREAMS_KEPT:
                    self._forget(next(iter(self._of_stream)))
            return replica.stats.address

    def done(self, call: RowCall) -> None:
        """Note that the row has left its replica."""
        with self._lock:
            self._done(call)

    def broke_off(self, call: RowCall) -> None:
        """Note that the row's replica did not finish it. Until that publishes again, others are preferred."""
        with self._lock:
            if (sent := self._sent.get(call.number)) and (replica := self._replicas.get(sent[0])) is not None:
                replica.is_suspect = True
            self._done(call)

    def _done(self, call: RowCall) -> None:
        name, audio_s = self._sent.pop(call.number, ("", 0.0))
        if (replica := self._replicas.get(name)) is not None:
            replica.own_s = max(0.0, replica.own_s - audio_s)

    def _forget(self, stream: str) -> None:
        if (name := self._of_stream.pop(stream, None)) is not None:
            self._placed[name] -= 1
            if not self._placed[name]:
                del self._placed[name]

    def _chosen(self, stream: str) -> str | None:
        listening = {name: replica for name, replica in self._replicas.items() if replica.stats.address is not None}
        found = {name: replica for name, replica in listening.items() if not replica.is_suspect} or listening
        if not found:
            return None
        if not stream:
            return min(found, key=lambda name: found[name].waiting_s)
        own = self._of_stream.get(stream)
        if own is None:
            return max(found, key=lambda name: (self._free_streams(name), -found[name].waiting_s))
        return own if own in found else max(found, key=lambda name: _weight(stream, name))

    def _free_streams(self, name: str) -> int:
        return self._replicas[name].streams - self._sessions_of_others(name) - self._placed[name]

    def _sessions_of_others(self, name: str) -> int:
        published = self._replicas[name].stats.sessions
        return sum(count for app, count in published.items() if self._apps.is_other(app))


def _weight(stream: str, name: str) -> bytes:
    """Return the weight of a replica for a session. The highest one wins, whichever others there are."""
    return hashlib.blake2b(f"{stream} {name}".encode(), digest_size=8).digest()


# The routing of the one app of this process, whose router is made by Ray Serve.
OF_PROCESS = Routing(apps.OF_PROCESS)
