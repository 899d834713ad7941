"""A cache of what earlier partials of live sessions computed: mel, keys and values of their closed windows.

A window of 8 s is closed once no later sample can change its frames. Its encoding then depends on one thing more: the
clamp, 8 log10_mel below the loudest value of the whole clip. While no kept value lies below the new clamp or the one it
was encoded with, everything kept is exact; otherwise the windows are encoded again. Evicted means slower, never
different.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from asr_server.engine.qwen_asr.frontend import Frames
from asr_server.engine.row import KeptTokens

# Samples at the end of the closed part by which a session's audio is recognised as the same, longer.
_PROBE_SAMPLES = 1_600
# Partials come every second or so: a session that has asked for none in this time is over, or can begin anew.
_UNUSED_S = 60.0


class SessionState(Protocol):
    """The state that is kept of a session."""

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays."""


@dataclass(slots=True, eq=False)
class CachedPrefix:
    """The state of a session after a partial."""

    before: tuple[int, ...]  # the prompt's token ids ahead of the audio
    samples: int  # how many the closed windows are
    reach: int  # how many more samples their frames depend on
    probe: NDArray[np.float32]  # the last samples of the closed part
    log10_mel: Frames  # those of the closed windows, (128, T), not clamped
    lowest: float  # the smallest value of `log10_mel`
    floor: float  # the clamp that they were encoded with
    windows: int  # how many windows are closed
    kv: KeptTokens  # of `before` and of the closed windows

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return self.probe.nbytes + self.log10_mel.nbytes + self.kv.nbytes

    def continues(self, audio: NDArray[np.float32], before: tuple[int, ...]) -> bool:
        """True if `audio` is the same recording, continued, after the same prompt."""
        tail = audio[max(0, self.samples - len(self.probe)) : self.samples]
        long_enough = len(audio) >= self.samples + self.reach
        return before == self.before and long_enough and np.array_equal(tail, self.probe)

    def exact_under(self, floor: float) -> bool:
        """True if the closed windows would be encoded the same with another clamp."""
        return floor == self.floor or self.lowest >= max(floor, self.floor)


def probe(audio: NDArray[np.float32], samples: int) -> NDArray[np.float32]:
    """Return the samples by which `audio` up to `samples` is recognised."""
    return audio[max(0, samples - _PROBE_SAMPLES) : samples].copy()


@dataclass(slots=True)
class PrefixCache:
    """Kept states by session key; the least recently used leave first."""

    limit_bytes: int  # of all states together
    clock: Callable[[], float] = time.monotonic  # monotonic seconds
    held_bytes: int = 0  # bytes that are held now
    evictions: int = 0  # states that left for want of room, so far
    _cached: OrderedDict[str, SessionState] = field(default_factory=OrderedDict)
    _used_s: dict[str, float] = field(default_factory=dict)

    def get(self, key: str) -> SessionState | None:
        """Return the state of a session, now the most recently used."""
        if key in self._cached:
            self._cached.move_to_end(key)
            self._used_s[key] = self.clock()
        return self._cached.get(key)

    def put(self, key: str, prefix: SessionState) -> None:
        """Keep the state, in place of an older one of the same session; too large a one is not kept at all."""
        self.forget(key)
        if prefix.nbytes > self.limit_bytes:
            return
        self._cached[key] = prefix
        self._used_s[key] = self.clock()
        self.held_bytes += prefix.nbytes
        while self.held_bytes > self.limit_bytes:
            self.forget(next(iter(self._cached)))
            self.evictions += 1

    def forget_unused(self) -> None:
        """Drop the sessions that nobody asked for in the last minute."""
        unused_s = self.clock() - _UNUSED_S
        for key in [key for key, used_s in self._used_s.items() if used_s < unused_s]:
            self.forget(key)

    def forget(self, key: str) -> None:
        """Drop one session."""
        prefix = self._cached.pop(key, None)
        if prefix is not None:
            self.held_bytes -= prefix.nbytes
            del self._used_s[key]

    def clear(self) -> None:
        """Drop all sessions."""
        self._cached.clear()
        self._used_s.clear()
        self.held_bytes = 0

    def __len__(self) -> int:
        return len(self._cached)
