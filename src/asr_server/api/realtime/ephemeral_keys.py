"""Who may open a realtime session: ephemeral keys, for browsers that must not see a real one. Knows no socket."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

from asr_server.api.edge.credentials import EPHEMERAL
from asr_server.api.realtime.config import Config
from asr_server.core.errors import InvalidKey

_KEPT = 10_000


@dataclass(frozen=True, slots=True)
class EphemeralKey:
    """A key that this server gave out. `expires_at`: Unix seconds. `config`: what a session with it begins with.

    `owner`: who asked for it.
    """

    value: str
    expires_at: int
    config: Config
    owner: str = ""


class EphemeralKeys:
    """All ephemeral keys, in memory: they end with the process. Of more than 10 000 the oldest go."""

    def __init__(self, now_s: Callable[[], float] = time.time) -> None:
        self._now_s = now_s
        self._keys: dict[str, EphemeralKey] = {}

    def issue(self, config: Config, lifetime_s: int, owner: str = "") -> EphemeralKey:
        """A new key."""
        now_s = self._now_s()
        self._keys = {value: key for value, key in self._keys.items() if key.expires_at > now_s}
        while len(self._keys) >= _KEPT:
            del self._keys[next(iter(self._keys))]
        key = EphemeralKey(EPHEMERAL + secrets.token_hex(24), int(now_s) + lifetime_s, config, owner)
        self._keys[key.value] = key
        return key

    def authorised(self, presented: str) -> EphemeralKey:
        """The ephemeral key that is presented. Raises `InvalidKey`."""
        key = self._keys.get(presented)
        if key is None or key.expires_at <= self._now_s():
            raise InvalidKey("The ephemeral key is unknown or has expired.")
        return key
