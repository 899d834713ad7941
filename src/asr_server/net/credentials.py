"""API keys and ephemeral keys: where a request or a WebSocket handshake has them, and which are valid.

An ephemeral key opens a realtime session from a browser that must not hold an API key. It contains its expiry and the
configuration of the session, signed with a secret derived from an API key. So nothing is stored, any server with the
same `API_KEYS` accepts it, and it becomes invalid together with the API key that requested it.
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
from starlette.requests import HTTPConnection

from asr_server.core.errors import InvalidInput

# The prefix of ephemeral keys.
EPHEMERAL = "ek_"
_REALTIME_PROTOCOL = "realtime"
_KEY_PROTOCOL = "openai-insecure-api-key."
# Deepgram's clients send `Token`, and in browsers the word and the key as two subprotocols.
_BEARER, _TOKEN = "bearer ", "token "


def presented(connection: HTTPConnection) -> str | None:
    """Return the key that the caller sent, or None. A malformed header counts as absent.

    A browser's WebSocket cannot set a header, so its key is a subprotocol, as OpenAI's client sends it, or `token` in
    the query. The query of an HTTP request is not read, since logs and histories keep URLs.
    """
    is_socket = connection.scope["type"] == "websocket"
    by_protocol = by_subprotocol(connection) if is_socket else None
    by_query = connection.query_params.get("token") if is_socket else None
    return by_protocol or _bearer(connection) or connection.headers.get("api-key") or by_query or None


def by_subprotocol(connection: HTTPConnection) -> str | None:
    """Return the key that OpenAI's browser client puts among the subprotocols, or None."""
    offered: list[str] = connection.scope.get("subprotocols") or []
    if len(offered) == 2 and offered[0] == _TOKEN.strip():
        return offered[1]
    return next((p.removeprefix(_KEY_PROTOCOL) for p in offered if p.startswith(_KEY_PROTOCOL)), None)


def realtime_subprotocol(connection: HTTPConnection) -> str | None:
    """Return OpenAI's subprotocol if the client offers it, else None."""
    offered: list[str] = connection.scope.get("subprotocols") or []
    return _REALTIME_PROTOCOL if _REALTIME_PROTOCOL in offered else None


def _bearer(connection: HTTPConnection) -> str | None:
    value = connection.headers.get("authorization", "")
    scheme = next((scheme for scheme in (_BEARER, _TOKEN) if value.lower().startswith(scheme)), None)
    return value[len(scheme) :].strip() if scheme else None


# Hex digits of a key's SHA-256 in the name of an owner, and in log lines.
_OWNER_DIGITS = 32
_FINGERPRINT_DIGITS = 8


class ApiKeys:
    """The digests of this server's API keys. Without keys every request is accepted and has no owner."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = tuple(_digest(key) for key in keys)

    def __bool__(self) -> bool:
        return bool(self._digests)

    def owner(self, presented: str) -> str | None:
        """Return the name under which the key's holder owns jobs and sessions, or None for an unknown key.

        The key is compared with all digests, each in constant time.
        """
        digest, known = _digest(presented), False
        for other in self._digests:
            known |= hmac.compare_digest(digest, other)
        return _name(digest) if known else None


def owner_of(key: str) -> str:
    return _name(_digest(key))


def fingerprint(owner: str) -> str:
    return owner[:_FINGERPRINT_DIGITS]


def _name(digest: bytes) -> str:
    return digest.hex()[:_OWNER_DIGITS]


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


MAX_LIFETIME_S = 7_200
# By default proxies accept header lines of 8 KiB (nginx) and heads of 15 KiB (HAProxy).
MAX_KEY_CHARS = 4_096
_MAX_SESSION_BYTES = 256 * 1024  # unpacked: several times the longest prompt and keywords
_CLOCKS_DIFFER_S = 60
_PURPOSE = b"asr-server ephemeral key 1"
# 7 ms and 2 MB for each API key at the start, and for each guess of an attacker that has an ephemeral key.
_SCRYPT = {"n": 2**11, "r": 8, "p": 1}
_MAC_BYTES, _TIME_BYTES = 32, 8


@dataclass(frozen=True, slots=True)
class EphemeralKey:
    """An issued key."""

    value: str
    expires_at: int  # Unix seconds


@dataclass(frozen=True, slots=True)
class OpenedSession:
    """The session that a key opens."""

    owner: str  # of the API key that requested it, "" on a server without keys
    session: Mapping[str, Any]


class EphemeralKeys:
    """Issues and verifies ephemeral keys.

    On a server without API keys everybody can make one, and it opens only what is open anyway.
    """

    def __init__(self, api_keys: Iterable[str], now_s: Callable[[], float] = time.time) -> None:
        self._secrets = {owner_of(key): secret_of(key) for key in api_keys} or {"": secret_of("")}
        self._now_s = now_s

    def issue(self, session: Mapping[str, Any], lifetime_s: int, owner: str = "") -> EphemeralKey:
        """Return a key for a session with this configuration, valid for `lifetime_s` seconds.

        Raises `invalid_value` if the configuration does not fit into a key.
        """
        expires_at = int(self._now_s()) + lifetime_s
        text = json.dumps(session, ensure_ascii=False, separators=(",", ":")).encode()
        content = expires_at.to_bytes(_TIME_BYTES, "big") + zlib.compress(text, 9)
        signed = mac_of(self._secrets[owner], content) + content
        value = EPHEMERAL + base64.urlsafe_b64encode(signed).rstrip(b"=").decode()
        if len(value) > MAX_KEY_CHARS or len(text) > _MAX_SESSION_BYTES:
            raise InvalidInput(
                f"The session does not fit into an ephemeral key of {MAX_KEY_CHARS} characters: send a long prompt or "
                "many keywords with session.update."
            )
        return EphemeralKey(value, expires_at)

    def open(self, value: str) -> OpenedSession:
        """Return the session that a key opens. Raises `invalid_api_key` for a foreign or an expired key."""
        content, owner = self._verified(value)
        remaining_s = int.from_bytes(content[:_TIME_BYTES], "big") - self._now_s()
        # No key is issued for longer, so a longer time means that a clock was wrong.
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
        owners = [owner for owner, secret in self._secrets.items() if hmac.compare_digest(mac, mac_of(secret, content))]
        if not owners:
            raise _invalid()
        return content, owners[0]


def secret_of(api_key: str) -> bytes:
    return hashlib.scrypt(api_key.encode(), salt=_PURPOSE, dklen=32, **_SCRYPT)


def mac_of(secret: bytes, content: bytes) -> bytes:
    return hmac.digest(secret, content, "sha256")


def _session(packed: bytes) -> Mapping[str, Any]:
    """Return the configuration. On a server without keys anybody may have written it."""
    unpacker = zlib.decompressobj()
    try:
        text = unpacker.decompress(packed, _MAX_SESSION_BYTES)
        session = pydantic_core.from_json(text)
    except (zlib.error, ValueError):
        raise _invalid() from None
    if not unpacker.eof or not isinstance(session, dict):
        raise _invalid()
    return session


def _invalid() -> InvalidInput:
    return InvalidInput("The ephemeral key is unknown or has expired.", code="invalid_api_key")
