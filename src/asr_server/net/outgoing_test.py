"""Requests to URLs of callers: what must not be reached is not, however the URL is written."""

import asyncio
import socket
import ssl
import subprocess
from contextlib import asynccontextmanager, closing, nullcontext, suppress
from email import message_from_string
from ipaddress import ip_address

import pytest

from asr_server.core.conftest import raises
from asr_server.core.errors import InvalidInput
from asr_server.core.settings import ListedHosts
from asr_server.net.outgoing import OutgoingClient, OutgoingRules

# Ways to write the address of this machine, or of another that is not public. `{p}` is the port of a server that is
# there. Names are those of the table of the resolver below.
_HOSTS = (
    "127.0.0.1 localhost localhost. 127.1 127.0.0.1. 2130706433 0x7f000001 0x7f.1 017700000001 0177.0.0.1 "
    "127.0.0.01 0 0.0.0.0 [::1] [::] [::ffff:127.0.0.1] [::127.0.0.1] [::1%25lo] [fe80::1%25eth0] "
    "[64:ff9b::127.0.0.1] [64:ff9b:1::7f00:1] [2002:7f00:1::] [2001:0:7f00:1::80ff:fffe] "
    "[fc00::1] [fd00:ec2::254] [fec0::1] [ff02::1] [2001:db8::1] 10.0.0.1 172.16.0.1 192.168.1.1 100.100.100.200 "
    "169.254.169.254 metadata.google.internal 168.63.129.16 198.18.0.1 224.0.0.1 255.255.255.255 "
    "１２７.0.0.1 ①②⑦.⓪.⓪.① 127。0。0。1 127%2e0%2e0%2e1 "
    "private.test both.test alias.test 127.0.0.1.nip.test public.test@127.0.0.1 127.0.0.1\t"
)
TRICKS = [f"http://{host}:{{p}}/" for host in _HOSTS.split(" ")]
TRICKS += ["http://127.0.0.1:{p}/\r\nHost:%20public.test", "http://127.0.0.1:{p}/\0", " http://127.0.0.1:{p}/"]
TRICKS += ["http://127.0.0.1:{p}\\@public.test/", "http://127.0.0.1:{p}#@public.test/", "http:127.0.0.1:{p}/"]
TRICKS += ["//127.0.0.1:{p}/", "ftp://127.0.0.1:{p}/", "file:///etc/passwd", "unix:///run/docker.sock", "data:,a"]

NAMES = {
    "localhost": ["127.0.0.1", "::1"],
    "localhost.": ["127.0.0.1"],
    "private.test": ["10.0.0.5"],
    "both.test": ["93.184.215.14", "127.0.0.1"],
    "alias.test": ["169.254.169.254"],
    "127.0.0.1.nip.test": ["127.0.0.1"],
    "metadata.google.internal": ["169.254.169.254"],
    "intranet.test": ["127.0.0.1"],
}


class Server:
    """An HTTP server of this machine that answers what it is told to, and keeps the requests."""

    def __init__(self):
        self.requests, self.connections = [], 0
        self.answers = {"/": [b"200 OK", b"Content-Length: 5", b"", b"hello"]}

    async def __call__(self, reader, writer):
        self.connections += 1
        with suppress(ConnectionError), closing(writer):
            line, _, fields = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").partition("\r\n")
            headers = message_from_string(fields)
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            self.requests.append((line, headers, body))
            answer = self.answers.get(line.split()[1], [b"404 Not Found", b"Content-Length: 0", b"", b""])
            writer.write(b"HTTP/1.1 " + b"\r\n".join(answer))
            if b"stall" in answer:
                await reader.read()  # until the client has left


@asynccontextmanager
async def guarded(listed="*", tls=None):
    """A server, and a client whose rules list these hosts, with the server's port `{p}` for public ones.

    Its name server knows `NAMES`. What is no name is read as the system does, which accepts other spellings.
    """
    server, names, asked = Server(), {**NAMES}, []

    def resolve(host, port, *, type):
        asked.append(host)
        if (found := names.get(host)) is not None:
            return [(socket.AF_INET, type, 6, "", (address, port)) for address in found]
        return socket.getaddrinfo(host, port, type=type, flags=socket.AI_NUMERICHOST)

    async with await asyncio.start_server(server, "127.0.0.1", 0, ssl=tls) as listening:
        server.port = listening.sockets[0].getsockname()[1]
        hosts = ListedHosts.of(listed.format(p=server.port))
        client = OutgoingClient(OutgoingRules(hosts, "HOSTS", frozenset({server.port})), resolve)
        client.asked, client.names = asked, names
        yield server, client
        await client.close()


async def fetched(client, url, **limits):
    pieces = []

    async def keep(piece):
        pieces.append(piece)

    await client.fetch(url, keep, **{"max_bytes": 100, "limit_s": 5.0, **limits})
    return b"".join(pieces)


async def test_no_trick_reaches_what_is_not_public():
    """The client refuses the URL itself, and sends nothing to the server, which would answer. No redirect of a listed
    host leads there either."""
    async with guarded("intranet.test:{p},*") as (server, client):
        listed = f"intranet.test:{server.port}"
        for trick in TRICKS:
            url = trick.format(p=server.port)
            before = server.connections
            with suppress(InvalidInput):
                pytest.fail(f"{url!r} has {await fetched(client, url)!r}")
            assert server.connections == before, url
            location = url.strip().replace("\r\n", "").encode()
            server.answers["/away"] = [b"302 Found", b"Content-Length: 0", b"Location: " + location, b"", b""]
            with suppress(InvalidInput):
                pytest.fail(f"a redirect to {url!r} has {await fetched(client, f'http://{listed}/away')!r}")
            assert {headers["host"] for _, headers, _ in server.requests} == {listed}, url


async def test_a_name_is_resolved_once_and_its_address_pinned():
    """A name server that answers with another address the second time changes nothing."""
    async with guarded("127.0.0.0/8") as (server, client):
        client.names["rebound.test"] = ["127.0.0.1"]
        url = f"http://rebound.test:{server.port}/"
        assert await fetched(client, url) == b"hello"
        assert client.asked == ["rebound.test"]
        assert server.requests[0][1]["host"] == f"rebound.test:{server.port}"
        client.names["rebound.test"] = ["10.0.0.1"]
        with raises("address_not_allowed"):
            await fetched(client, url)


@pytest.fixture
def tls(monkeypatch, tmp_path):
    """The TLS of a server with a certificate of `intranet.test` that clients trust."""
    key, certificate = tmp_path / "key", tmp_path / "certificate"
    made = ["openssl", "req", "-x509", "-newkey", "ed25519", "-nodes", "-days", "2", "-subj", "/CN=intranet.test"]
    made += ["-addext", "subjectAltName=DNS:intranet.test", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(made, check=True, capture_output=True)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate, key)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    return tls


async def test_the_certificate_is_that_of_the_name(tls):
    """The connection goes to an address, and a certificate of another name is refused all the same."""
    async with guarded("127.0.0.1", tls) as (server, client):
        assert await fetched(client, f"https://intranet.test:{server.port}/") == b"hello"
        client.names["other.test"] = ["127.0.0.1"]
        for host in ("other.test", "127.0.0.1"):
            with raises("url_failed"):
                await fetched(client, f"https://{host}:{server.port}/")
        assert len(server.requests) == 1


@pytest.mark.parametrize("listed", ["intranet.test:{p}", "127.0.0.1", "127.0.0.0/8,10.0.0.0/8"])
async def test_an_operator_lists_names_addresses_and_networks(listed):
    """A request reaches a listed host, over a redirect too. It tries the next address if one does not answer."""
    async with guarded(listed) as (server, client):
        client.names["intranet.test"] = ["127.0.0.9", "127.0.0.1"] if listed != "127.0.0.1" else ["127.0.0.1"]
        server.answers["/away"] = [b"307 Temporary Redirect", b"Location: /", b"Content-Length: 0", b"", b""]
        assert await fetched(client, f"http://intranet.test:{server.port}/away") == b"hello"


LISTED = "Hooks.test,minio.test:8080,*.example.com,10.0.0.0/8"
STRANGERS = ("example.com", "badexample.com", "a.hooks.test", "hooks.test.evil.net", "minio.test")


@pytest.mark.parametrize(
    ("listed", "host", "port", "address", "reason"),
    [
        *((LISTED, host, 443, "1.1.1.1", "") for host in ("hooks.test", "a.b.example.com")),
        (LISTED, "minio.test", 8080, "127.0.0.1", ""),
        *((LISTED, host, 8080, "10.1.1.1", "") for host in ("a.example.com", "other.test")),
        *((LISTED, host, 443, "127.0.0.1", "not a pub") for host in ("hooks.test", "a.example.com", "other.test")),
        *((LISTED, "a.example.com", port, "1.1.1.1", "port") for port in (22, 8080)),
        ("*", "93.184.215.14", 8080, "93.184.215.14", "port"),
        *((LISTED, host, 443, "1.1.1.1", "not one of HOSTS") for host in STRANGERS),
        *(("*", "any.test", 443, address, "") for address in ("1.1.1.1", "172.32.0.1", "2606:4700::1111")),
        ("*", "any.test", 443, "127.0.0.1", "not a public one"),
        # Before the name is resolved.
        (LISTED, "other.test", 443, None, ""),
        ("hooks.test,*.example.com", "a.example.com", 443, None, ""),
        ("hooks.test,*.example.com", "other.test", 443, None, "not one of HOSTS"),
        ("", "other.test", 443, None, "not one of HOSTS"),
    ],
)
def test_a_host_is_reached_if_it_is_listed(listed, host, port, address, reason):
    """Private addresses and other ports: only of networks, and of names that are listed with their port."""
    addresses = [ip_address(address)] if address else []
    with raises("address_not_allowed", match=reason) if reason else nullcontext():
        OutgoingRules(ListedHosts.of(listed), "HOSTS").check(host, port, addresses)


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ([b"200 OK", b"Content-Length: 101", b"", b""], "file_too_large"),
        ([b"200 OK", b"", b"x" * 101], "file_too_large"),
        ([b"200 OK", b"Content-Length: 9", b"", b"cut off"], "url_failed"),
        ([b"200 OK", b"Content-Encoding: gzip", b"", b"x"], "url_failed"),
        ([b"404 Not Found", b"Content-Length: 0", b"", b""], "url_failed"),
        ([b"302 Found", b"Location: /", b"Content-Length: 0", b"", b""], "url_failed"),
        ([b"200 OK", b"Content-Length: 9", b"", b"stall"], "url_failed"),
    ],
)
async def test_an_answer_without_the_content_is_an_error(answer, code):
    """A body that is too long, cut off, compressed, an error, a redirect without end or too slow is an error."""
    async with guarded("intranet.test:{p}") as (server, client):
        server.answers["/"] = answer
        with raises(code):
            await fetched(client, f"http://intranet.test:{server.port}/", limit_s=0.5)
        assert len(server.requests) <= 4


async def test_nothing_of_the_environment_or_of_another_request_is_used(monkeypatch, tmp_path):
    """Over a proxy the check of addresses would mean nothing; a password is the operator's, and a cookie the host's."""
    (tmp_path / "netrc").write_text("machine intranet.test login a password b")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    async with guarded("intranet.test:{p}") as (server, client):
        server.answers["/"].insert(1, b"Set-Cookie: a=b")
        for _ in range(2):
            assert await fetched(client, f"http://intranet.test:{server.port}/") == b"hello"
        for _, headers, _ in server.requests:
            assert not {"authorization", "cookie"} & {name.lower() for name in headers}


async def test_content_is_sent_and_a_redirect_of_it_is_not_followed():
    """The status is returned as it is."""
    async with guarded("intranet.test:{p}") as (server, client):
        server.answers["/in"] = [b"307 Temporary Redirect", b"Location: /", b"Content-Length: 0", b"", b""]
        url = f"http://intranet.test:{server.port}/in"
        assert await client.post(url, {"X-One": "1"}, b"content", limit_s=5.0) == 307
        [(line, headers, body)] = server.requests
        assert (line, headers["x-one"], body) == ("POST /in HTTP/1.1", "1", b"content")
