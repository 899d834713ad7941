"""A cache of results of earlier rows: keys and values of repeated prompts, and mel frames, keys and values of the
closed windows of live sessions.

A window of 8 s is closed once no later sample can change its frames. From then on its encoding depends only on the
clamp, 8 log10_mel below the loudest value of the whole clip. While no cached value lies below the new clamp or the
clamp it was encoded with, the cached state is exact; otherwise the windows are encoded again. An eviction makes answers
slower, never different.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from asr_server.engine.qwen_asr.frontend import Frames
from asr_server.engine.row import KeptTokens

# A session's audio is recognised as a continuation by this many samples at the end of its closed part.
_PROBE_SAMPLES = 1_600
# Partials come every second or so: a session that requested none for this long is over, or can begin anew.
_UNUSED_S = 60.0
# Prompts stay longer: a list of names may serve many recordings, or a home where people speak now and then.
_PROMPT_UNUSED_S = 900.0
# A system turn without a prompt or hotwords is shorter than this, and computing it is as fast as copying it.
LEAST_PROMPT_TOKENS = 64
_COMPUTED_PROMPTS = 64


# The key of a session, or the token ids of a prompt.
Key = str | tuple[int, ...]


class SessionState(Protocol):
    """The cached state of a session or a prompt."""

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays."""


@dataclass(frozen=True, slots=True, eq=False)
class SessionPrefix:
    """The part of a session's state that does not depend on the encoder."""

    before: tuple[int, ...]  # the prompt's token ids ahead of the audio
    samples: int  # how many samples the encoded frames cover
    probe: NDArray[np.float32]  # the last of these samples
    kv: KeptTokens  # keys and values of `before` and of these samples

    def continues(self, audio: NDArray[np.float32], before: tuple[int, ...], reach: int = 0) -> bool:
        """True if `audio` is the same recording, at least `reach` samples longer, after the same prompt."""
        long_enough = len(audio) >= self.samples + reach
        return before == self.before and long_enough and np.array_equal(probe(audio, self.samples), self.probe)


@dataclass(frozen=True, slots=True, eq=False)
class CachedPrefix(SessionPrefix):
    """The state of a session after a partial: its closed windows."""

    log10_mel: Frames  # of the closed windows, (128, T), not clamped
    lowest: float  # the smallest value of `log10_mel`
    floor: float  # the clamp that the windows were encoded with

    @property
    def nbytes(self) -> int:
        return self.probe.nbytes + self.log10_mel.nbytes + self.kv.nbytes

    def exact_under(self, floor: float) -> bool:
        """True if the closed windows would be encoded the same with another clamp."""
        return floor == self.floor or self.lowest >= max(floor, self.floor)


def probe(audio: NDArray[np.float32], samples: int) -> NDArray[np.float32]:
    """Return the samples by which `audio` up to `samples` is recognised."""
    return audio[max(0, samples - _PROBE_SAMPLES) : samples].copy()


@dataclass(slots=True)
class PrefixCache:
    """Cached states of sessions by their keys, and of prompts by their token ids.

    Evicts prompts before sessions, so that many prompts slow down no session, and the least recently used first.
    """

    limit_bytes: int  # of all states together
    clock: Callable[[], float] = time.monotonic  # monotonic seconds
    held_bytes: int = 0  # bytes that are held now
    _cached: OrderedDict[Key, SessionState] = field(default_factory=OrderedDict)
    _used_s: dict[Key, float] = field(default_factory=dict)
    # The last prompts that were computed and not cached. Most never come again, and their copies would displace other
    # states.
    _computed: deque[tuple[int, ...]] = field(default_factory=lambda: deque(maxlen=_COMPUTED_PROMPTS))

    def prompt(self, before: tuple[int, ...]) -> KeptTokens | None:
        """Return the keys and values of a prompt's ids up to the audio, or None if they are not cached."""
        found = self.get(before)
        return found if isinstance(found, KeptTokens) else None

    def put_prompt(self, before: tuple[int, ...], copy: Callable[[int], KeptTokens]) -> None:
        """Cache a prompt that was computed twice recently. `copy` returns keys and values of the row's first tokens."""
        if len(before) < LEAST_PROMPT_TOKENS or before in self._cached:
            return
        if before in self._computed:
            self._computed.remove(before)
            self.put(before, copy(len(before)))
        else:
            self._computed.append(before)

    def get(self, key: Key) -> SessionState | None:
        """Return the state under a key and mark it as the most recently used."""
        if key in self._cached:
            self._cached.move_to_end(key)
            self._used_s[key] = self.clock()
        return self._cached.get(key)

    def put(self, key: Key, prefix: SessionState) -> None:
        """Cache a state, replacing an older one of the same key. A state above the limit is not cached."""
        self.forget(key)
        if prefix.nbytes > self.limit_bytes:
            return
        self._cached[key] = prefix
        self._used_s[key] = self.clock()
        self.held_bytes += prefix.nbytes
        while self.held_bytes > self.limit_bytes:
            prompts = (key for key in self._cached if not isinstance(key, str))
            self.forget(next(prompts, next(iter(self._cached))))

    def forget_unused(self) -> None:
        """Drop sessions that were not used in the last minute, and prompts that were not used in the last 15
        minutes."""
        now_s = self.clock()
        for key, used_s in list(self._used_s.items()):
            if now_s - used_s > (_UNUSED_S if isinstance(key, str) else _PROMPT_UNUSED_S):
                self.forget(key)

    def forget(self, key: Key) -> None:
        """Drop one state."""
        prefix = self._cached.pop(key, None)
        if prefix is not None:
            self.held_bytes -= prefix.nbytes
            del self._used_s[key]

    def clear(self) -> None:
        """Drop all states."""
        self._computed.clear()
        self._cached.clear()
        self._used_s.clear()
        self.held_bytes = 0

    def __len__(self) -> int:
        return len(self._cached)
