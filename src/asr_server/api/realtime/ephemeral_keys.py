"""Ephemeral keys, which open a realtime session from a browser that must not hold a real key."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from asr_server.api.edge.credentials import EPHEMERAL
from asr_server.api.realtime.config import Config
from asr_server.core.errors import InvalidKey

_KEPT = 10_000


@dataclass(frozen=True, slots=True)
class EphemeralKey:
    """A key that this server issued. `expires_at`: Unix seconds, for the caller. `config`: what a session with it
    begins with.

    `owner`: the owner of the key that asked for it. `ends_s`: when it ends, by a clock that nobody sets.
    """

    value: str
    expires_at: int
    config: Config
    owner: str = ""
    ends_s: float = 0.0


class EphemeralKeys:
    """All ephemeral keys, in memory: they end with the process. At most 10 000 are kept."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._keys: dict[str, EphemeralKey] = {}

    def issue(self, config: Config, lifetime_s: int, owner: str = "") -> EphemeralKey:
        """A new key for a session of `config`, valid for `lifetime_s` seconds."""
        now_s = self._now_s()
        self._keys = {value: key for value, key in self._keys.items() if key.ends_s > now_s}
        while len(self._keys) >= _KEPT:
            most = Counter(key.owner for key in self._keys.values()).most_common(1)[0][0]
            del self._keys[next(value for value, key in self._keys.items() if key.owner == most)]
        value, ends_s = EPHEMERAL + secrets.token_hex(24), now_s + lifetime_s
        key = EphemeralKey(value, int(time.time()) + lifetime_s, config, owner, ends_s)
        self._keys[key.value] = key
        return key

    def find(self, value: str) -> EphemeralKey:
        """The key of this value. Raises `InvalidKey` for an unknown or expired one."""
        key = self._keys.get(value)
        if key is None or key.ends_s <= self._now_s():
            raise InvalidKey("The ephemeral key is unknown or has expired.")
        return key
