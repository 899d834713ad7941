"""The operator's keys: whose is the one that was presented. Holds digests, never a key; knows no wire."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable

# Hex digits of a key's SHA-256: what is kept beside a job, and what a log line may carry.
_OWNER_DIGITS = 32
_FINGERPRINT_DIGITS = 8


class ApiKeys:
    """All keys of this server. Without any, everyone is let in and nobody is known."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = tuple(_digest(key) for key in keys)

    def __bool__(self) -> bool:
        return bool(self._digests)

    def owner(self, presented: str) -> str | None:
        """The name under which the holder of this key owns things, None for a key that is not on the ring.

        Takes the same time for every key: all digests are compared, and each of them whole.
        """
        digest, known = _digest(presented), False
        for other in self._digests:
            known |= hmac.compare_digest(digest, other)
        return digest.hex()[:_OWNER_DIGITS] if known else None


def fingerprint(owner: str) -> str:
    """The short form of an owner for log lines: who does not have the key learns nothing from it."""
    return owner[:_FINGERPRINT_DIGITS]


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
