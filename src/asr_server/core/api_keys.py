"""The API keys of this server: who owns a presented key. Holds digests, never a key."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable

# Hex digits of a key's SHA-256: as the owner of a job, and in log lines.
_OWNER_DIGITS = 32
_FINGERPRINT_DIGITS = 8


class ApiKeys:
    """The keys of this server. Without any, every request is accepted and has no owner."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = tuple(_digest(key) for key in keys)

    def __bool__(self) -> bool:
        return bool(self._digests)

    def owner(self, presented: str) -> str | None:
        """Return the name under which the holder of this key owns jobs and sessions; None for an unknown key.

        Takes the same time for every key: it is compared with all digests, in constant time each.
        """
        digest, known = _digest(presented), False
        for other in self._digests:
            known |= hmac.compare_digest(digest, other)
        return _name(digest) if known else None


def owner_of(key: str) -> str:
    """Return the name under which the holder of this key owns jobs and sessions."""
    return _name(_digest(key))


def fingerprint(owner: str) -> str:
    """Return the short form of an owner for log lines. It does not help to guess the key."""
    return owner[:_FINGERPRINT_DIGITS]


def _name(digest: bytes) -> str:
    return digest.hex()[:_OWNER_DIGITS]


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
