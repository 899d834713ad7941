"""Requests to URLs that callers name, only to hosts that the operator lists.

A host name is resolved once for each request, all of its addresses are checked, and the connection is made to one of
them, so a later answer of the name server changes nothing. The TLS name and the `Host` header come from the URL.
Proxies, cookies and passwords of the environment are not used.

The server cannot know addresses that are private only in the operator's network (its own NAT64 prefix, a public address
behind a firewall). Block those with network rules.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any

import httpx

from asr_server.core.errors import InvalidInput
from asr_server.core.settings import ListedHosts

_MAX_URL_CHARS = 8_192
# Printable ASCII without the backslash, which some parsers read as a slash. Other characters can be percent-encoded or
# written in Punycode.
_URL = re.compile(r"[!-\[\]-~]+")
_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
# The last label of a name must not be a number: resolvers accept such a name as an IPv4 address (`127.1`,
# `2130706433`, `0x7f.1`).
_NAME = re.compile(rf"(?:{_LABEL}\.)*(?!(?:[0-9]+|0x[0-9a-f]*)\Z){_LABEL}")
_PORTS = frozenset({80, 443})
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_MAX_REDIRECTS = 3
_MAX_ADDRESSES = 4  # of one name, tried in turn
# A thread that waits for a slow name server cannot be stopped, so resolving has its own threads.
_RESOLVING_THREADS = 8  # one caller has at most half of the concurrent requests
_CONNECT_S, _STALLED_S = 10.0, 30.0
_TIMEOUTS_S = {"connect": _CONNECT_S, "read": _STALLED_S, "write": _STALLED_S, "pool": _STALLED_S}

# Networks that are not public, but missing from some versions of `ipaddress`, or from IANA's registry.
_NOT_PUBLIC = tuple(
    ip_network(network)
    for network in (
        "168.63.129.16/32",  # Azure's services for its virtual machines
        "192.0.0.0/24",  # protocol assignments, with Oracle's metadata service
        "192.88.99.0/24",  # relays of 6to4
        "2001::/23",  # protocol assignments, with Teredo, which contains IPv4 addresses
        "2002::/16",  # 6to4, which contains IPv4 addresses
        "3fff::/20",  # documentation
    )
)
# Global unicast addresses. These exclude loopback, link-local and unique local addresses, multicast, and IPv4 addresses
# that are mapped (`::ffff:0:0/96`), compatible (`::/96`) or translated (`64:ff9b::/32`).
_UNICAST_V6 = IPv6Network("2000::/3")

Address = IPv4Address | IPv6Address
Resolve = Callable[..., list[tuple[Any, ...]]]
Sink = Callable[[bytes], Awaitable[object]]


def is_public(address: Address) -> bool:
    """Return True if the address belongs to a host on the public internet."""
    is_known = address.is_global and not address.is_multicast and (address.version == 4 or address in _UNICAST_V6)
    return is_known and not any(address in network for network in _NOT_PUBLIC)


@dataclass(frozen=True, slots=True)
class OutgoingRules:
    """The addresses and ports that may be connected to."""

    listed: ListedHosts
    setting: str  # the name of the list
    ports: frozenset[int] = _PORTS  # of hosts that are listed without a port or an address

    def check(self, host: str, port: int, addresses: list[Address]) -> None:
        """Raise `address_not_allowed` unless the rules allow all addresses of the host at this port. If the addresses
        are not known yet, raise it only if none could be allowed."""
        if f"{host}:{port}" in self.listed.patterns:
            return
        others = [own for own in addresses if not any(own in network for network in self.listed.networks)]
        if not all(map(is_public, others)):
            raise _refused()
        if not self.listed.match(host) and (others or not self.listed.networks):
            raise InvalidInput(f"The host of the URL is not one of {self.setting}.", code="address_not_allowed")
        if others and port not in self.ports:
            raise InvalidInput("The port of the URL is neither 80 (HTTP) nor 443 (HTTPS).", code="address_not_allowed")


class OutgoingClient:
    """Sends requests within the rules. Used from one event loop.

    `resolve`: `socket.getaddrinfo`, except in tests. Methods raise `invalid_value` for an invalid URL,
    `address_not_allowed`, and `url_failed`.
    """

    def __init__(self, rules: OutgoingRules, resolve: Resolve = socket.getaddrinfo) -> None:
        self._rules, self._resolve = rules, resolve
        self._threads = ThreadPoolExecutor(_RESOLVING_THREADS, "resolve")
        # Not httpx's client, which uses cookies, proxies and passwords of the environment. A connection is used once:
        # the pool finds connections by address, and would send the request for one host over another's connection.
        self._transport = httpx.AsyncHTTPTransport(
            verify=httpx.create_ssl_context(), limits=httpx.Limits(max_keepalive_connections=0)
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._transport.aclose()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def check(self, url: str) -> None:
        """Raise if the URL cannot be requested, without looking up the addresses of its host."""
        target, addresses = parsed(url), list[Address]()
        with suppress(ValueError):
            addresses.append(ip_address(target.host))
        self._rules.check(target.host, _port(target), addresses)

    async def fetch(self, url: str, sink: Sink, *, max_bytes: int, limit_s: float) -> None:
        """Get the URL, following at most three redirects, and give its content to `sink` in pieces.

        `limit_s`: for the whole request, in seconds. Also raises `file_too_large`.
        """
        headers = {"Accept": "*/*", "Accept-Encoding": "identity"}
        with _failures():
            async with asyncio.timeout(limit_s):
                target = parsed(url)
                for _ in range(_MAX_REDIRECTS + 1):
                    async with self._response("GET", target, headers, None) as response:
                        if response.status_code not in _REDIRECTS:
                            return await _read(response, sink, max_bytes)
                        target = parsed(str(target.join(response.headers.get("Location", ""))))
        raise InvalidInput(f"The URL leads to more than {_MAX_REDIRECTS} redirects.", code="url_failed")

    async def post(self, url: str, headers: Mapping[str, str], content: bytes, *, limit_s: float) -> int:
        """Send the content and return the status, without reading the response or following redirects."""
        with _failures():
            async with asyncio.timeout(limit_s), self._response("POST", parsed(url), headers, content) as response:
                return response.status_code

    @asynccontextmanager
    async def _response(
        self, method: str, url: httpx.URL, headers: Mapping[str, str], content: bytes | None
    ) -> AsyncIterator[httpx.Response]:
        """Send the request to one of the checked addresses of the URL's host, and yield the response."""
        response: httpx.Response | None = None
        for address in await self._addresses(url):
            request = httpx.Request(
                method,
                url.copy_with(host=str(address)),
                headers={"User-Agent": "asr-server", **headers, "Host": url.netloc.decode("ascii")},
                content=content,
                extensions={"sni_hostname": url.host, "timeout": _TIMEOUTS_S},
            )
            with suppress(httpx.ConnectError, httpx.ConnectTimeout):  # nothing was sent: try the next address
                response = await self._transport.handle_async_request(request)
                break
        if response is None:
            raise InvalidInput("No connection can be made to the host of the URL.", code="url_failed")
        try:
            yield response
        finally:
            await response.aclose()

    async def _addresses(self, url: httpx.URL) -> list[Address]:
        port = _port(url)
        try:
            addresses: list[Address] = [ip_address(url.host)]
        except ValueError:
            loop = asyncio.get_running_loop()
            ask = partial(self._resolve, url.host, port, type=socket.SOCK_STREAM)
            try:
                async with asyncio.timeout(_CONNECT_S):
                    found = await loop.run_in_executor(self._threads, ask)
            except (OSError, UnicodeError):  # TimeoutError is an OSError
                raise _refused() from None
            addresses = [ip_address(socket_address[0]) for *_, socket_address in found]
        self._rules.check(url.host, port, addresses)
        return addresses[:_MAX_ADDRESSES]


def parsed(url: str) -> httpx.URL:
    """Parse an HTTP or HTTPS URL that has a host and no user. Raises `invalid_value`."""
    if len(url) > _MAX_URL_CHARS or not _URL.fullmatch(url):
        raise InvalidInput(
            f"A URL has at most {_MAX_URL_CHARS} characters, which are printable ASCII: percent-encode others."
        )
    try:
        found = httpx.URL(url)
    except httpx.InvalidURL:
        raise InvalidInput("The URL is not valid.") from None
    if found.scheme not in ("http", "https"):
        raise InvalidInput("The URL does not begin with https:// or http://.")
    if found.userinfo or "@" in url.partition("://")[2].partition("/")[0]:
        raise InvalidInput("The URL names a user or a password.")
    if not _NAME.fullmatch(found.host):
        with suppress(ValueError):
            if "%" not in found.host and str(ip_address(found.host)) == found.host:
                return found
        raise InvalidInput("The host of the URL is neither a name nor an address in its usual form.")
    return found


def _port(url: httpx.URL) -> int:
    return url.port if url.port is not None else 443 if url.scheme == "https" else 80


async def _read(response: httpx.Response, sink: Sink, max_bytes: int) -> None:
    """Give the content of a response to `sink`. Raises `url_failed` and `file_too_large`."""
    if response.status_code != 200:
        raise InvalidInput(f"The host of the URL answered {response.status_code}.", code="url_failed")
    # A compressed body may expand a thousandfold, and the request did not accept compression.
    if response.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise InvalidInput("The content of the URL is compressed (Content-Encoding).", code="url_failed")
    length = response.headers.get("Content-Length", "")
    size = 0
    if not (length.isdecimal() and int(length) > max_bytes):
        async for piece in response.aiter_raw():
            size += len(piece)
            if size > max_bytes:
                break
            await sink(piece)
        else:
            return
    raise InvalidInput(
        f"The content of the URL is larger than the {max_bytes / 2**20:g} MiB that this server takes.",
        code="file_too_large",
    )


def _refused() -> InvalidInput:
    """Return the error for a host that is unknown or not public, without saying which of the two it is."""
    return InvalidInput(
        "The host of the URL is unknown, or its address is not a public one.", code="address_not_allowed"
    )


@contextmanager
def _failures() -> Iterator[None]:
    """Raise connection errors and timeouts as `url_failed`."""
    try:
        yield
    except TimeoutError:
        raise InvalidInput("The request to the URL took too long.", code="url_failed") from None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise InvalidInput(f"The request to the URL failed ({type(error).__name__}).", code="url_failed") from None
