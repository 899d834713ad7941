"""Which engine replica gets a row: pure, but for a lock, since two threads use it.

The rows of a live session go to the replica that has the work on its closed audio. Rows of recordings go to the replica
with the least audio under way.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from asr_server.cluster.messages import ReplicaStats, RowCall
from asr_server.core.audio import SAMPLE_RATE

# Live sessions whose replica is remembered; of more, those that were silent for longest are routed as new ones.
_STREAMS_KEPT = 16_384
# Replicas after the first that a session may go to.
FALLBACKS = 2


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

    def rank(self, call: RowCall, names: Sequence[str], ring: Sequence[str]) -> list[str]:
        """The replicas for a row, best first. `names`: those that can be chosen. `ring`: for a live session, the order
        of its consistent hash; a session whose replica is gone goes to the first of them."""
        with self._lock:
            known = [name for name in names if name in self._replicas] or list(names)
            trusted = [name for name in known if not self._is_suspect(name)] or known
            if not call.stream:
                return sorted(trusted, key=self._waiting_s)
            return self._rank_stream(call.stream, trusted, [name for name in ring if name in trusted])

    def sent(self, call: RowCall, name: str) -> None:
        """A replica has taken the row."""
        audio_s = len(call.item.audio) / SAMPLE_RATE
        with self._lock:
            self._done(call)
            self._sent[call.number] = name, audio_s
            if (replica := self._replicas.get(name)) is not None:
                replica.own_s += audio_s
                if call.stream and self._of_stream.get(call.stream) != name:
                    replica.new_streams += 1
            if call.stream:
                self._of_stream[call.stream] = name
                self._of_stream.move_to_end(call.stream)
                if len(self._of_stream) > _STREAMS_KEPT:
                    self._of_stream.popitem(last=False)

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

    def _rank_stream(self, stream: str, names: list[str], ring: list[str]) -> list[str]:
        own = self._of_stream.get(stream)
        others = ring or names
        if own in names:
            assert own is not None
            return [own, *(name for name in others if name != own)][: 1 + FALLBACKS]
        if own is None:
            others = sorted(names, key=lambda name: (-self._free_streams(name), self._waiting_s(name)))
        return others[: 1 + FALLBACKS]

    def _is_suspect(self, name: str) -> bool:
        return name in self._replicas and self._replicas[name].is_suspect

    def _waiting_s(self, name: str) -> float:
        return self._replicas[name].waiting_s if name in self._replicas else 0.0

    def _free_streams(self, name: str) -> int:
        return self._replicas[name].free_streams if name in self._replicas else 0


# That of the one app of a process: its router is made by Ray Serve.
OF_PROCESS = Routing()
