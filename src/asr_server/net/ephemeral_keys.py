"""Ephemeral keys, which open a realtime session from a browser that must not hold a real key.

A key contains its expiry and the session that it opens, signed with a secret that is derived from an API key. So any
server with the same `API_KEYS` accepts it, nothing is stored, and it ends with the API key that it was requested with.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import time
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pydantic_core

from asr_server.core.api_keys import owner_of
from asr_server.core.errors import InvalidKey, InvalidValue
from asr_server.net.credentials import EPHEMERAL

MAX_LIFETIME_S = 7_200
# Proxies take lines of 8 KiB (nginx) and heads of 15 KiB (HAProxy) unless told otherwise.
MAX_KEY_CHARS = 4_096
_MAX_SESSION_BYTES = 256 * 1024  # unpacked: several times the longest prompt and keywords
_CLOCKS_DIFFER_S = 60
_PURPOSE = b"asr-server ephemeral key 1"
# 7 ms and 2 MB for each API key at the start, and for each guess of an attacker who has an ephemeral key.
_SCRYPT = {"n": 2**11, "r": 8, "p": 1}
_MAC_BYTES, _TIME_BYTES = 32, 8


@dataclass(frozen=True, slots=True)
class EphemeralKey:
    """A key that was issued."""

    value: str
    expires_at: int  # Unix seconds


@dataclass(frozen=True, slots=True)
class OpenedSession:
    """The session that a key opens."""

    owner: str  # of the API key that it was requested with, "" on a server without keys
    session: Mapping[str, Any]


class EphemeralKeys:
    """Issues and verifies ephemeral keys on behalf of these API keys.

    On a server without API keys everybody can make one: it opens nothing that is not open anyway.
    """

    def __init__(self, api_keys: Iterable[str], now_s: Callable[[], float] = time.time) -> None:
        self._secrets = {owner_of(key): _secret(key) for key in api_keys} or {"": _secret("")}
        self._now_s = now_s

    def issue(self, session: Mapping[str, Any], lifetime_s: int, owner: str = "") -> EphemeralKey:
        """Return a key for a session of this configuration, valid for `lifetime_s` seconds.

        Raises `InvalidValue` where the configuration does not fit into a key.
        """
        expires_at = int(self._now_s()) + lifetime_s
        text = json.dumps(session, ensure_ascii=False, separators=(",", ":")).encode()
        content = expires_at.to_bytes(_TIME_BYTES, "big") + zlib.compress(text, 9)
        signed = _mac(self._secrets[owner], content) + content
        value = EPHEMERAL + base64.urlsafe_b64encode(signed).rstrip(b"=").decode()
        if len(value) > MAX_KEY_CHARS or len(text) > _MAX_SESSION_BYTES:
            raise InvalidValue(
                f"The session does not fit into an ephemeral key of {MAX_KEY_CHARS} characters: send a long prompt or "
                "many keywords with session.update."
            )
        return EphemeralKey(value, expires_at)

    def open(self, value: str) -> OpenedSession:
        """Return the session that a key opens. Raises `InvalidKey` for a foreign or an expired key."""
        content, owner = self._verified(value)
        remaining_s = int.from_bytes(content[:_TIME_BYTES], "big") - self._now_s()
        # No key is issued for longer, so one that seems to be was issued while a clock was wrong.
        if not 0 < remaining_s <= MAX_LIFETIME_S + _CLOCKS_DIFFER_S:
            raise _invalid()
        return OpenedSession(owner, _session(content[_TIME_BYTES:]))

    def _verified(self, value: str) -> tuple[bytes, str]:
        """Return the signed part and the owner. Compares with the signatures of all API keys, each in constant time."""
        if len(value) > MAX_KEY_CHARS:
            raise _invalid()
        encoded = value.removeprefix(EPHEMERAL)
        try:
            signed = base64.b64decode(encoded + "=" * (-len(encoded) % 4), b"-_", validate=True)
        except (binascii.Error, ValueError):
            raise _invalid() from None
        mac, content = signed[:_MAC_BYTES], signed[_MAC_BYTES:]
        owners = [owner for owner, secret in self._secrets.items() if hmac.compare_digest(mac, _mac(secret, content))]
        if not owners:
            raise _invalid()
        return content, owners[0]


def _secret(api_key: str) -> bytes:
    return hashlib.scrypt(api_key.encode(), salt=_PURPOSE, dklen=32, **_SCRYPT)


def _mac(secret: bytes, content: bytes) -> bytes:
    return hmac.digest(secret, content, "sha256")


def _session(packed: bytes) -> Mapping[str, Any]:
    """Return the configuration. On a server without keys it may be from anybody."""
    unpacker = zlib.decompressobj()
    try:
        text = unpacker.decompress(packed, _MAX_SESSION_BYTES)
        session = pydantic_core.from_json(text)
    except (zlib.error, ValueError):
        raise _invalid() from None
    if not unpacker.eof or not isinstance(session, dict):
        raise _invalid()
    return session


def _invalid() -> InvalidKey:
    return InvalidKey("The ephemeral key is unknown or has expired.")
