"""The access check around the real app: all of its routes are tried, so that a new one cannot be forgotten."""

import asyncio
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr_server import app as server
from asr_server import feature_list, web
from asr_server.core.conftest import raises
from asr_server.core.errors import InvalidInput, Overloaded
from asr_server.core.settings import Settings
from asr_server.net.access import PROBES, AccessRules, Origins
from asr_server.net.edge import Edge

KEYS = "sk-first,sk-second"


def _app(**settings):
    return server.create_app(Settings(_env_file=None, **{"model_id": "demo", "api_keys": KEYS, **settings}))


async def _answer(app, method, path, **headers):
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        return await client.request(method, path, headers=headers)


async def _socket(app, path, *, query="", protocols=(), **headers):
    """What the app sends to a socket that connects: the first message's type, its status or close code."""
    scope = {
        "type": "websocket",
        "path": path,
        "query_string": query.encode(),
        "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()],
        "subprotocols": list(protocols),
        "client": ("127.0.0.1", 5),
        "extensions": {"websocket.http.response": {}},
        "state": {},
    }
    sent = []

    received = asyncio.Queue()
    received.put_nowait({"type": "websocket.connect"})

    async def send(message):
        sent.append(message)
        received.put_nowait({"type": "websocket.disconnect", "code": 1000})

    await asyncio.wait_for(app(scope, received.get, send), 20)
    return sent


KEYED = _app()


async def test_the_page_needs_no_key():
    """All of its files, and none that it has not. Modules are parts of the scripts that import them, and no files."""
    for part in ("", f"{web.version()}/"):
        statuses = {name: (await _answer(KEYED, "GET", f"/web/{part}{name}")).status_code for name in web.names()}
        assert set(statuses.values()) <= {200, 404}
        assert {Path(name).suffix for name, status in statuses.items() if status == 404} == {".js"}
        assert statuses["app.js"] == 200
    for path in ("/web/", "/web/x.js", "/web/../health", "/web/app.js/x", f"/web/{web.version()}/x.js"):
        assert (await _answer(KEYED, "GET", path)).status_code == 401


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "QUERY"])
async def test_a_foreign_page_cannot_make_a_browser_spend_work(method):
    """A multipart form needs no preflight: it is refused by its origin, unless that is allowed."""
    for origins, status in (("", 403), ("http://evil.example", 404), ("*", 404)):
        app = _app(api_keys="", allowed_origins=origins)
        answer = await _answer(app, method, "/nowhere", origin="http://evil.example")
        assert answer.status_code == status
        assert status == 404 or answer.json()["error"]["code"] == "origin_not_allowed"
    assert (await _answer(_app(api_keys=""), method, "/nowhere", origin="http://127.0.0.1")).status_code == 404


async def test_an_allowed_page_may_read_answers_and_their_headers():
    """Preflight with any header, the answer's origin, the request id exposed; also of a refusal."""
    app = _app(allowed_origins="https://app.example.com")
    asked = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,x-stainless-os"}
    preflight = await _answer(app, "OPTIONS", "/v1/jobs", origin="https://app.example.com", **asked)
    assert preflight.status_code == 200
    assert "x-stainless-os" in preflight.headers["access-control-allow-headers"]
    refused = await _answer(app, "POST", "/v1/jobs", origin="https://app.example.com")
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == "https://app.example.com"
    exposed = refused.headers["access-control-expose-headers"].split(", ")
    # Without `x-should-retry` OpenAI's client in a page sends a recording again that met the time limit.
    assert {"x-request-id", "retry-after", "x-should-retry", "x-untranslated"} <= set(exposed)
    other = await _answer(app, "OPTIONS", "/v1/jobs", origin="https://evil.example", **asked)
    assert "access-control-allow-origin" not in other.headers


async def test_a_caller_over_its_share_is_told_when_to_come_back():
    """429 with Retry-After, per key; sockets alike, and the other key is not touched."""
    app = _app(key_rate=2)
    first, second = {"authorization": "Bearer sk-first"}, {"authorization": "Bearer sk-second"}
    assert [(await _answer(app, "GET", "/nowhere", **first)).status_code for _ in range(3)] == [404, 404, 429]
    refused = await _answer(app, "GET", "/nowhere", **first)
    assert refused.json()["error"]["code"] == "rate_limit_exceeded"
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    assert (await _socket(app, "/ws/transcribe", **first))[0]["status"] == 429
    assert (await _answer(app, "GET", "/nowhere", **second)).status_code == 404
    assert (await _answer(app, "GET", "/nowhere")).status_code == 401


@pytest.mark.parametrize(
    ("addresses", "shared"),
    [
        (["10.0.0.1", "10.0.0.2"], False),
        (["2001:db8::1", "2001:db8::2"], True),
        (["2001:db8::1", "2001:db8:0:1::1"], False),
        (["::ffff:10.0.0.1", "::ffff:10.0.0.2"], False),
    ],
)
async def test_without_keys_the_address_counts(addresses, shared):
    """An IPv6 subscriber has a whole network of addresses; it is one caller."""
    app = _app(api_keys="", key_rate=1)
    statuses = []
    for address in addresses:
        transport = httpx.ASGITransport(app, client=(address, 5))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            statuses.append((await client.get("/nowhere")).status_code)
    assert statuses == [404, 429 if shared else 404]


async def test_who_looks_at_the_state_may_still_ask():
    """The page does so every few seconds; it needs a key, and takes nothing from what its user may ask for."""
    app = _app(key_rate=1)
    app.state.services = None  # the access check answers, and no route
    key = {"api-key": "sk-first"}
    assert (await _answer(app, "GET", "/health")).status_code == 401
    for _ in range(3):
        assert (await _answer(app, "GET", "/health", **key)).status_code == 500
    assert [(await _answer(app, "GET", "/nowhere", **key)).status_code for _ in range(2)] == [404, 429]


async def test_a_place_is_taken_until_the_answer_is_written():
    """And no longer: not until the server has tidied up behind it."""
    free = {}

    def note(when):
        try:
            with rules.quota.taken("me"):
                free[when] = True
        except Overloaded:
            free[when] = False

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"a", "more_body": True})
        await send({"type": "http.response.body", "body": b"b"})
        note("after the answer")

    async def write(message):
        note(message.get("body", b"head"))

    rules = AccessRules.of(Settings(_env_file=None, key_max_requests=1))
    headers = [(b"host", b"127.0.0.1")]
    scope = {"type": "http", "method": "GET", "path": "/v1/models", "headers": headers, "client": ("me", 1)}
    scope["app"] = KEYED
    await Edge(app, rules)(scope, None, write)
    assert free == {b"head": False, b"a": False, b"b": False, "after the answer": True}


async def test_a_fault_of_ours_has_id_and_headers_and_gives_its_place_back():
    """Also an error that nobody expected has the headers of the access check."""
    app = _app(key_max_requests=1)

    @app.get("/broken")
    async def broken():
        raise ZeroDivisionError

    for _ in range(3):
        answer = await _answer(app, "GET", "/broken", **{"api-key": "sk-first"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")
        assert {"x-request-id", "x-content-type-options"} <= set(answer.headers)


@pytest.mark.parametrize("path", ["/livez", "/", "/nowhere", "/docs", "/v1/models"])
async def test_every_answer_tells_browsers_what_they_may_do(path):
    """Refusals of requests and redirects included. Styles within the page are for that of the API alone, scripts for
    none."""
    answer = await _answer(KEYED, "GET", path)
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cross-origin-resource-policy"] == "same-origin"
    policy = answer.headers["content-security-policy"]
    assert policy.partition(";")[0] == f"default-src '{'none' if path == '/' else 'self'}'"
    assert "frame-ancestors 'none'" in policy
    inline = [part.split()[0] for part in policy.split(";") if "unsafe-inline" in part]
    assert inline == (["style-src"] if path == "/docs" else [])


def test_the_schema_has_the_doors_answers():
    """Every operation but the probes: 401, 403 and 429; keys are declared where there are some."""
    for app, keyed in ((KEYED, True), (_app(api_keys=""), False)):
        schema = app.openapi()
        for path, operations in schema["paths"].items():
            for operation in operations.values():
                guarded = path not in PROBES
                assert ({"401", "403", "429"} <= set(operation["responses"])) is guarded
                needs_key = guarded and not path.startswith(feature_list.open_paths())
                assert ("security" in operation) is (needs_key and keyed)


async def test_a_refused_socket_tells_browsers_what_they_may_do():
    """Its refusal is an HTTP response like any other: it has the same headers."""
    (start, *_) = await _socket(KEYED, "/ws/transcribe")
    assert start["type"] == "websocket.http.response.start"
    told = {name.decode().lower() for name, _ in start["headers"]}
    answer = await _answer(KEYED, "GET", "/nowhere")
    wanted = {
        name for name in answer.headers if name.startswith(("x-content", "referrer", "cross-origin", "content-s"))
    }
    assert len(wanted) == 4
    assert wanted <= told


async def _charged(rules, headers, address, path="/v1/realtime"):
    """Return who shares the quota of this socket; None if it is refused."""
    shares = []

    async def app(scope, receive, send):
        shares.append(scope["state"]["caller"].share)

    async def ignore(message):
        pass

    listed = [(b"host", b"127.0.0.1"), *headers]
    scope = {"type": "websocket", "path": path, "query_string": b"", "headers": listed, "client": (address, 5)}
    scope |= {"subprotocols": [], "extensions": {"websocket.http.response": {}}, "state": {}, "app": KEYED}
    await Edge(app, rules)(scope, ignore, ignore)
    return shares[0] if shares else None


async def test_ephemeral_keys_share_the_quota_of_the_key_that_they_were_issued_for():
    """All of one key together, from whatever address; another key has its own."""
    rules = AccessRules.of(Settings(_env_file=None, api_keys=KEYS, key_rate=2))
    owners = [rules.api_keys.owner(key) for key in KEYS.split(",")]

    async def charged(owner, address):
        value = rules.ephemeral_keys.issue({}, 60, owner).value
        return await _charged(rules, [(b"authorization", f"Bearer {value}".encode())], address)

    assert [await charged(owners[0], f"10.0.0.{number}") for number in range(3)] == [owners[0], owners[0], None]
    assert await charged(owners[1], "10.0.0.1") == owners[1]


LISTED = Origins(frozenset({"https://app.example.com", "http://localhost:3000", "chrome-extension://abc"}))
NAMES = st.from_regex(r"[a-z][a-z0-9-]{0,10}(\.[a-z]{2,5}){1,2}", fullmatch=True)


def _refused(check, *values):
    try:
        check(*values)
    except InvalidInput:
        return True
    return False


@pytest.mark.parametrize(
    ("origin", "host", "refused"),
    [
        (None, "asr.example.com", False),
        ("http://127.0.0.1:8100", "127.0.0.1:8100", False),
        ("http://127.0.0.1:8100", "127.0.0.1:8101", True),
        ("https://asr.example.com", "asr.example.com", False),
        ("https://asr.example.com", "asr.example.com:443", False),
        ("https://ASR.example.com", "asr.EXAMPLE.com", False),
        ("https://asr.example.com", "asr.example.com:80", True),
        ("http://evil.example", "asr.example.com", True),
        ("http://asr.example.com.evil.example", "asr.example.com", True),
        ("null", "null", True),
        ("", "", True),
        ("http://", "", True),
        ("file://", "", True),
        ("ftp://asr.example.com", "asr.example.com", True),
        ("https://app.example.com", "asr.example.com", False),
        ("https://APP.example.com", "asr.example.com", False),
        ("http://app.example.com", "asr.example.com", True),
        ("http://localhost:3000", "localhost:8100", False),
        ("chrome-extension://abc", "localhost:8100", False),
        ("chrome-extension://abd", "localhost:8100", True),
        ("http://evil.example", None, True),
    ],
)
def test_a_page_calls_its_own_server_or_is_named(origin, host, refused):
    """Host and port are the server's, whatever the scheme's default port adds, or the list has the origin."""
    assert _refused(LISTED.check_origin, origin, host) is refused


@given(st.text(), st.text())
def test_no_two_texts_break_the_rules(origin, host):
    """Whatever the headers hold: in, or out by our error."""
    _refused(LISTED.check_origin, origin, host)
    _refused(Origins(frozenset(), keyless=True).check_host, host)


@given(NAMES)
def test_everyone_is_in_by_a_star_only(name):
    """A star is written; it is not what an empty list means."""
    assert not _refused(Origins(frozenset("*")).check_origin, f"https://{name}", "here")
    assert _refused(Origins(frozenset()).check_origin, f"https://{name}", "here")


@pytest.mark.parametrize(
    "host", ["127.0.0.1:8100", "[::1]:8100", "10.1.2.3", "localhost", "LOCALHOST:1", "a.localhost."]
)
def test_addresses_and_localhost_are_right_everywhere(host):
    """No name of somebody else's can be one of them."""
    assert not _refused(Origins(frozenset(), keyless=True, loopback=True).check_host, host)


@given(NAMES, st.booleans())
def test_a_name_with_a_dot_is_refused_without_keys_alone(name, loopback):
    """A foreign page has no key; without keys it may have pointed its name here. The list can allow it."""
    assert _refused(Origins(frozenset(), keyless=True, loopback=loopback).check_host, f"{name}:8100")
    assert not _refused(Origins(frozenset(), keyless=False, loopback=loopback).check_host, f"{name}:8100")
    listed = Origins(frozenset({f"http://{name}:8100"}), keyless=True, loopback=loopback)
    assert not _refused(listed.check_host, f"{name}:8100")


def test_a_bare_name_is_right_where_other_machines_can_connect():
    """Containers call each other by such names; on loopback there is no reason to."""
    for name in ("asr", "asr-cpu", "asr_1", "9"):
        assert not _refused(Origins(frozenset(), keyless=True).check_host, f"{name}:8000")
        assert _refused(Origins(frozenset(), keyless=True, loopback=True).check_host, f"{name}:8000")


@pytest.mark.parametrize(
    "name",
    [
        *("nas.local", "asr.home.arpa", "a.b.internal", "asr.lan", "pi.home", "a.localdomain", "nas.fritz.box"),
        "host.docker.internal",
    ],
)
def test_names_of_private_networks_are_right_where_other_machines_can_connect(name):
    """Nobody can register them. On loopback only Docker's name for its host is."""
    assert not _refused(Origins(frozenset(), keyless=True).check_host, f"{name}:8100")
    refused = _refused(Origins(frozenset(), keyless=True, loopback=True).check_host, f"{name}:8100")
    assert refused == (name != "host.docker.internal")
    assert _refused(Origins(frozenset(), keyless=True).check_host, f"{name}.example")


def test_a_refused_name_is_told_what_to_set():
    """The line as it goes into the settings, which then lets it in; an odd header is not repeated."""
    for host, line in (("asr.example.com:8100", "ALLOWED_ORIGINS=http://asr.example.com:8100"), ("a b.c", None)):
        with raises("host_not_allowed") as refusal:
            Origins(frozenset(), keyless=True).check_host(host)
        assert refusal.value.message.endswith(line or "can register only.")
    Origins(frozenset({"http://asr.example.com:8100"}), keyless=True).check_host("asr.example.com:8100")


@pytest.mark.parametrize(
    "host", ["", ":", "[", "a b", "evil.example/localhost", "evil.example#localhost", "user@localhost.x"]
)
def test_what_is_no_host_is_no_name_of_ours(host):
    """Odd headers are refused, and raise nothing else."""
    assert _refused(Origins(frozenset(), keyless=True).check_host, host)
