"""Which engine replica gets a row: pure, but for a lock, since two threads use it.

The rows of a live session go to the replica that has the work on its closed audio; if that has ended, to another that
every app would choose, by rendezvous hashing. Rows of recordings go to the replica with the least audio under way.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

from asr_server.cluster.messages import Address, ReplicaStats, RowCall
from asr_server.core.audio import SAMPLE_RATE

# Live sessions whose replica is remembered; of more, those that were silent for longest are routed as new ones.
_STREAMS_KEPT = 16_384


@dataclass(slots=True, eq=False)
class _Replica:
    """`own_s`: seconds of audio that this app has there. `new_streams`: sent there since `stats`. `is_suspect`: a row
    broke off there, and it has published nothing since."""

    stats: ReplicaStats
    own_s: float = 0.0
    new_streams: int = 0
    is_suspect: bool = False

    @property
    def waiting_s(self) -> float:
        """What is under way there, as far as it is known: what other apps send is published a moment later."""
        return max(self.own_s, self.stats.waiting_s)

    @property
    def free_streams(self) -> int:
        return self.stats.free_streams - self.new_streams


class Routing:
    """The replicas that run, as this app knows them, and what it has sent to each."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._replicas: dict[str, _Replica] = {}
        self._of_stream: OrderedDict[str, str] = OrderedDict()
        self._sent: dict[int, tuple[str, float]] = {}

    @property
    def stats(self) -> Mapping[str, ReplicaStats]:
        """As last published, by replica."""
        with self._lock:
            return {name: replica.stats for name, replica in self._replicas.items()}

    def update(self, stats: Mapping[str, ReplicaStats]) -> None:
        """These replicas run now, and others do not."""
        with self._lock:
            before, self._replicas = self._replicas, {}
            for name, published in stats.items():
                replica = before.get(name) or _Replica(published)
                if replica.stats != published:
                    replica.stats, replica.new_streams, replica.is_suspect = published, 0, False
                self._replicas[name] = replica

    def choose(self, call: RowCall) -> Address | None:
        """The replica for a row, which counts as sent there; None while none has published its address."""
        audio_s = len(call.item.audio) / SAMPLE_RATE
        with self._lock:
            self._done(call)
            if (name := self._chosen(call.stream)) is None:
                return None
            replica = self._replicas[name]
            self._sent[call.number] = name, audio_s
            replica.own_s += audio_s
            if call.stream:
                replica.new_streams += self._of_stream.get(call.stream) != name
                self._of_stream[call.stream] = name
                self._of_stream.move_to_end(call.stream)
                if len(self._of_stream) > _STREAMS_KEPT:
                    self._of_stream.popitem(last=False)
            return replica.stats.address

    def done(self, call: RowCall) -> None:
        """The row has left its replica."""
        with self._lock:
            self._done(call)

    def broke_off(self, call: RowCall) -> None:
        """The row's replica did not finish it: until that publishes again, others are better."""
        with self._lock:
            if (sent := self._sent.get(call.number)) and (replica := self._replicas.get(sent[0])) is not None:
                replica.is_suspect = True
            self._done(call)

    def _done(self, call: RowCall) -> None:
        name, audio_s = self._sent.pop(call.number, ("", 0.0))
        if (replica := self._replicas.get(name)) is not None:
            replica.own_s = max(0.0, replica.own_s - audio_s)

    def _chosen(self, stream: str) -> str | None:
        listening = {name: replica for name, replica in self._replicas.items() if replica.stats.address is not None}
        found = {name: replica for name, replica in listening.items() if not replica.is_suspect} or listening
        if not found:
            return None
        if not stream:
            return min(found, key=lambda name: found[name].waiting_s)
        own = self._of_stream.get(stream)
        if own is None:
            return max(found, key=lambda name: (found[name].free_streams, -found[name].waiting_s))
        return own if own in found else max(found, key=lambda name: _weight(stream, name))


def _weight(stream: str, name: str) -> bytes:
    """Of a replica for a session: the highest one wins, whichever others there are."""
    return hashlib.blake2b(f"{stream} {name}".encode(), digest_size=8).digest()


# That of the one app of a process: its router is made by Ray Serve.
OF_PROCESS = Routing()
