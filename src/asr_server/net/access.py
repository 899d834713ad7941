"""Access control: API keys and ephemeral keys, the rules for web pages and host names, and each caller's quota.

`net.edge` applies the rules. `schedule/admission.py` limits the work of the whole server.

A browser that must not hold an API key opens a realtime session with an ephemeral key. The key contains its expiry and
the configuration of the session, signed with a secret derived from an API key. So nothing is stored, any server with
the same `API_KEYS` accepts it, and it becomes invalid together with the API key that requested it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import math
import re
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pydantic_core
from starlette.requests import HTTPConnection

from asr_server.core.errors import InvalidInput, Overloaded

if TYPE_CHECKING:
    from asr_server.core.settings import Settings

# Probes have no key, and their responses hold no data.
PROBES = frozenset({"/livez", "/readyz"})


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of a request."""

    owner: str = ""  # the owner of its jobs and sessions, "" without keys
    session: Mapping[str, Any] | None = None  # the realtime session in the ephemeral key, None for other keys
    share: str = ""  # its name in quotas: the owner, or an address without keys


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
    """Return the key that a browser client of OpenAI's or Deepgram's puts among the subprotocols, or None."""
    offered: list[str] = connection.scope.get("subprotocols") or []
    if len(offered) == 2 and offered[0] == _TOKEN.strip():
        return offered[1]
    return next((p.removeprefix(_KEY_PROTOCOL) for p in offered if p.startswith(_KEY_PROTOCOL)), None)


def selected_subprotocol(connection: HTTPConnection) -> str | None:
    """Return OpenAI's or Deepgram's subprotocol if the client offers it, else None.

    A browser fails the handshake if it offers subprotocols and the server selects none.
    """
    offered: list[str] = connection.scope.get("subprotocols") or []
    return next((known for known in (_REALTIME_PROTOCOL, _TOKEN.strip()) if known in offered), None)


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
        return _owner_name(digest) if known else None


def owner_of(key: str) -> str:
    return _owner_name(_digest(key))


def fingerprint(owner: str) -> str:
    return owner[:_FINGERPRINT_DIGITS]


def _owner_name(digest: bytes) -> str:
    return digest.hex()[:_OWNER_DIGITS]


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


MAX_LIFETIME_S = 7_200
# By default proxies accept header lines of 8 KiB (nginx) and heads of 15 KiB (HAProxy).
MAX_KEY_CHARS = 4_096
_MAX_SESSION_BYTES = 256 * 1024  # unpacked: several times the longest prompt and keywords
_CLOCKS_DIFFER_S = 60
_PURPOSE = b"asr-server ephemeral key 1"
# This takes 7 ms and 2 MB for each API key at the start, and for each guess of an attacker with an ephemeral key.
_SCRYPT = {"n": 2**11, "r": 8, "p": 1}
_MAC_BYTES, _TIME_BYTES = 32, 8


@dataclass(frozen=True, slots=True)
class EphemeralKey:
    """An issued key."""

    value: str
    expires_at: int  # Unix seconds


class EphemeralKeys:
    """Issues and verifies ephemeral keys.

    On a server without API keys anybody can make a key, but it opens only what is open anyway.
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

    def open(self, value: str) -> Caller:
        """Return the caller and session of a key. Raises `invalid_api_key` for a foreign or an expired key."""
        content, owner = self._verified(value)
        remaining_s = int.from_bytes(content[:_TIME_BYTES], "big") - self._now_s()
        # No key is issued for longer, so a longer time means that a clock was wrong.
        if not 0 < remaining_s <= MAX_LIFETIME_S + _CLOCKS_DIFFER_S:
            raise _invalid()
        return Caller(owner, _session(content[_TIME_BYTES:]))

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
    """Return the configuration of the session. On a server without keys, anybody may have written it."""
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


_ANY = "*"
_BARE_NAME = re.compile(r"[\w-]+")
_HOST = re.compile(r"[A-Za-z0-9.-]{1,253}(:\d{1,5})?")
_PRIVATE = (".internal", ".local", ".home.arpa", ".lan", ".home", ".localdomain", ".fritz.box")
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}


@dataclass(frozen=True, slots=True)
class Origins:
    """The web pages that may call (by `Origin`) and the host names that they may use (by `Host`)."""

    allowed: frozenset[str]  # origins in lower case, or `*`
    keyless: bool = False  # no key is needed, so host names are checked against DNS rebinding
    loopback: bool = False  # the server listens on a loopback address, so only local names are accepted

    def check_origin(self, origin: str | None, host: str | None) -> None:
        """Check a request that changes or costs something. Raises `origin_not_allowed` for a page of another site.

        A request without an origin does not come from a browser. `host`: the request's host, which is the origin of the
        server's own page.
        """
        if origin is None or _ANY in self.allowed or origin.lower() in self.allowed:
            return
        if host is None or not _same_site(origin.lower(), host.lower()):
            raise InvalidInput(
                "Web pages of this origin may not call: ALLOWED_ORIGINS does not name it.", code="origin_not_allowed"
            )

    def check_host(self, host: str | None) -> None:
        """Raise `host_not_allowed` for a name that a stranger's DNS may resolve to this server."""
        if not self.keyless or host is None or _ANY in self.allowed:
            return
        name, own_origins = _name(host), {_name(origin.partition("://")[2]) for origin in self.allowed}
        if not (_is_address(name) or self._is_own(name) or name in own_origins):
            raise InvalidInput(
                "A server without keys answers to addresses and to names that no stranger can register only."
                + (f" To add this one, set ALLOWED_ORIGINS=http://{host.lower()}" if _HOST.fullmatch(host) else ""),
                code="host_not_allowed",
            )

    def _is_own(self, name: str) -> bool:
        """Return True for a name that no stranger can register.

        These are `localhost` and its subdomains. If other machines can connect, also names without a dot and names of
        private networks: RFC 6762, RFC 8375, ICANN's `.internal`, the names that routers give and ICANN does not
        delegate (`.home`; SSAC's SAC 113), and AVM's `fritz.box`.
        """
        if name in ("localhost", "host.docker.internal") or name.endswith(".localhost"):
            return True
        return not self.loopback and (_BARE_NAME.fullmatch(name) is not None or name.endswith(_PRIVATE))


def _same_site(origin: str, host: str) -> bool:
    scheme, _, place = origin.partition("://")
    port = _DEFAULT_PORTS.get(scheme)
    return port is not None and place != "" and place.removesuffix(port) == host.removesuffix(port)


def _name(host: str) -> str:
    """Return the host name without its port, in lower case; "" if it is malformed."""
    with suppress(ValueError):
        return (urlsplit(f"//{host}").hostname or "").removesuffix(".")
    return ""


def _is_address(name: str) -> bool:
    with suppress(ValueError):
        ip_address(name)
        return True
    return False


# -- the quota of a caller ---------------------------------------------------------------------------------------------

_MINUTE_S = 60.0
# The most callers to remember. Beyond that, the caller that was away longest and has no work under way is forgotten.
MAX_CALLERS = 10_000
# The most connections on a live session's place: a client reconnects before its broken connections are noticed.
_MAX_CONNECTIONS = 4
_LIVE_RETRY_S = 5  # sessions take minutes; some end at any time


@dataclass(slots=True, eq=False)
class Place:
    """A slot of a caller's quota, held by a request or by a live session with all of its connections.

    A session that waits for its client keeps its place, as the only holder.
    """

    live: bool  # it belongs to a live session
    usage: _CallerUsage  # the caller's
    quota: Quota
    evict: Callable[[], None] | None = None  # ends the session and so frees the place; None if nothing can end it
    holders: int = 0  # requests or connections that share the place

    @contextmanager
    def held(self) -> Iterator[Place]:
        """Hold the place until the block ends. The last holder frees it."""
        if not self.holders:
            self.quota.live += self.live
        self.holders += 1
        self.usage.places[self] = None
        try:
            yield self
        finally:
            self.holders -= 1
            self.usage.places.move_to_end(self)
            if not self.holders:
                self.quota.live -= self.live
                del self.usage.places[self]

    @contextmanager
    def kept(self, session: str, evict: Callable[[], None]) -> Iterator[None]:
        """Hold the place for the session with this id. The session's connections join it."""
        self.evict = evict
        self.usage.sessions[session] = self
        try:
            with self.held():
                yield
        finally:
            self.evict = None
            del self.usage.sessions[session]


@dataclass(slots=True, eq=False)
class _CallerUsage:
    # The token bucket as one number: when it will be full again. It holds a minute's worth of requests.
    full_at_s: float = -math.inf
    places: OrderedDict[Place, None] = field(default_factory=OrderedDict)  # the one that a connection left last is last
    sessions: dict[str, Place] = field(default_factory=dict)  # by id


class Quota:
    """Limits the requests and sessions of each caller, by name. A limit of 0 means none. For the event loop only.

    `at_once`: a caller's requests and live sessions; `per_minute`: its requests; `max_live`: sessions of all callers.
    """

    def __init__(
        self, at_once: int, per_minute: int, now_s: Callable[[], float] = time.monotonic, *, max_live: int = 0
    ) -> None:
        self._at_once, self._max_live = at_once, max_live
        self._interval_s = _MINUTE_S / per_minute if per_minute else 0.0
        self._now_s = now_s
        self._usage: dict[str, _CallerUsage] = {}
        self.live = 0  # places of live sessions, of all callers

    @contextmanager
    def taken(self, caller: str, *, live: bool = False, resumes: str = "") -> Iterator[Place]:
        """Yield a place for a request until the block ends, or the place of the caller's session that it resumes.

        If no place is free, evict the caller's session that has been without a connection for longest. Raises
        `Overloaded`. A refused request costs nothing.
        """
        usage = self._usage_of(caller)
        full_at_s = self._full_at_s(usage)
        place = usage.sessions.get(resumes)
        if place is None or place.holders > _MAX_CONNECTIONS:
            if refusal := self._refusal(usage, live=live):
                evict = next((other.evict for other in usage.places if other.holders == 1 and other.evict), None)
                if evict is None:
                    raise refusal
                evict()
            place = Place(live, usage, self)
        usage.full_at_s = full_at_s  # only now: a refused request costs nothing
        with place.held():
            yield place

    def _refusal(self, usage: _CallerUsage, *, live: bool) -> Overloaded | None:
        if self._at_once and len(usage.places) >= self._at_once:
            return Overloaded(f"This caller has {self._at_once} requests and sessions under way, and may have no more.")
        # One caller gets another session only while more are free than it has: a single caller can take half of them.
        own = sum(place.live for place in usage.places)
        if live and self._max_live and own >= self._max_live - self.live:
            return Overloaded(
                "The server has all the live sessions that it can give this caller; try again later.",
                retry_after_s=_LIVE_RETRY_S,
            )
        return None

    def _full_at_s(self, usage: _CallerUsage) -> float:
        """Return when the bucket is full again after one more request. Raises `Overloaded`."""
        now_s = self._now_s()
        full_at_s = max(usage.full_at_s, now_s) + self._interval_s
        wait_s = full_at_s - now_s - _MINUTE_S
        # Not 0: intervals that are not round numbers add up to a little more than a minute.
        if wait_s > self._interval_s / 1000:
            raise Overloaded("This caller has made all its requests of this minute.", retry_after_s=math.ceil(wait_s))
        return full_at_s

    def _usage_of(self, caller: str) -> _CallerUsage:
        """Return the usage of the caller, and make the caller the last to be forgotten."""
        found = self._usage.pop(caller) if caller in self._usage else _CallerUsage()
        self._usage[caller] = found
        if len(self._usage) > MAX_CALLERS:
            # Callers with places stay: a place updates the usage that it was taken from.
            idle = next((name for name, other in self._usage.items() if not other.places), caller)
            if idle != caller:
                del self._usage[idle]
        return found


@dataclass(frozen=True, slots=True)
class AccessRules:
    """The access rules of a server."""

    api_keys: ApiKeys
    ephemeral_keys: EphemeralKeys
    origins: Origins
    quota: Quota
    open_paths: tuple[str, ...] = ()  # prefixes of paths that are read without a key: their routes check a token

    @classmethod
    def of(cls, settings: Settings, open_paths: tuple[str, ...] = ()) -> AccessRules:
        api_keys = ApiKeys(settings.keys)
        origins = Origins(settings.origins, keyless=not api_keys, loopback=settings.is_local)
        quota = Quota(settings.key_max_requests, settings.key_rate, max_live=settings.max_live_sessions)
        return cls(api_keys, EphemeralKeys(settings.keys), origins, quota, open_paths)
