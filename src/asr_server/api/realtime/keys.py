"""Who may open a realtime session: ephemeral keys, for browsers that must not see a real one. Knows no socket."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

from asr_server.api.realtime.config import Config
from asr_server.core.errors import InvalidKey

PREFIX = "ek_"
_KEPT = 10_000


@dataclass(frozen=True, slots=True)
class Key:
    """A key that this server gave out. `expires_at`: Unix seconds. `config`: what a session with it begins with."""

    value: str
    expires_at: int
    config: Config


class Keys:
    """All ephemeral keys, in memory: they end with the process. Of more than 10 000 the oldest go."""

    def __init__(self, now_s: Callable[[], float] = time.time) -> None:
        self._now_s = now_s
        self._keys: dict[str, Key] = {}

    def issue(self, config: Config, lifetime_s: int) -> Key:
        """A new key."""
        now_s = self._now_s()
        self._keys = {value: key for value, key in self._keys.items() if key.expires_at > now_s}
        while len(self._keys) >= _KEPT:
            del self._keys[next(iter(self._keys))]
        key = Key(PREFIX + secrets.token_hex(24), int(now_s) + lifetime_s, config)
        self._keys[key.value] = key
        return key

    def authorised(self, presented: str | None) -> Key | None:
        """The ephemeral key that is presented, None for any other or none. Raises `InvalidKey`.

        This server has no other keys: whoever presents no ephemeral one is let in.
        """
        if presented is None or not presented.startswith(PREFIX):
            return None
        key = self._keys.get(presented)
        if key is None or key.expires_at <= self._now_s():
            raise InvalidKey("The ephemeral key is unknown or has expired.")
        return key
