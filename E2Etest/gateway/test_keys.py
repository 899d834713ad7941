"""Keys, shares and origins through the gateway: every kind of traffic, also when the worker dies under it."""

import json
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from asr_server.client.live import LiveClient, LiveOptions
from E2Etest.gateway.workers import kill_worker, wait_until_gone, worker_of
from E2Etest.live.session import act, data, finals, receive, upto_flush
from E2Etest.process import running

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

URL = "/v1/audio/transcriptions"
FIRST, SECOND, APP = "sk-canary-first", "sk-canary-second", "https://app.example"
HEADERS = ({"authorization": f"Bearer {FIRST}"}, {"api-key": SECOND})
SETTINGS = {"API_KEYS": f"{FIRST},{SECOND}", "ALLOWED_ORIGINS": APP, "MAX_UPLOAD_MB": "4", "IDLE_TIMEOUT": "600"}
# What every answer has anew.
ANEW = ("date", "x-request-id", "openai-processing-ms", "server-timing")


@pytest.fixture(scope="module")
def keyed(tmp_path_factory, fake_sample):
    """A gateway with two keys, for the pages of one site."""
    with running(tmp_path_factory.mktemp("keyed") / "log", GATEWAY_MODE="true", **SETTINGS, **fake_sample) as server:
        yield server


@pytest.fixture(scope="module")
def plain(tmp_path_factory, fake_sample):
    """The same without a gateway."""
    with running(tmp_path_factory.mktemp("plain") / "log", **SETTINGS, **fake_sample) as server:
        yield server


def _socket(server, path="/ws/transcribe", *, key="", query="", **more):
    url = server.base.replace("http", "ws", 1) + path + query
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return connect(url, additional_headers=headers, compression=None, open_timeout=60, **more)


def _refusal(server, path="/ws/transcribe", **how):
    with pytest.raises(InvalidStatus) as refused, _socket(server, path, **how):
        pass
    answer = refused.value.response
    return answer.status_code, json.loads(answer.body)["error"]["code"]


def _heard(socket, speech):
    socket.send(data(speech))
    act(socket, "flush")
    return [text for text, *_ in finals(upto_flush(socket))]


@pytest.mark.parametrize("headers", HEADERS, ids=["bearer", "api-key"])
def test_a_right_key_gets_files_and_streams(keyed, sample, headers):
    """And the gateway's own answers, which are about a worker that checks keys itself."""
    form = {"files": {"file": ("a.wav", sample[0])}, "data": {"model": "whisper-1"}, "headers": headers}
    assert httpx.post(keyed.base + URL, timeout=120, **form).json()["text"] == sample[1]
    events = httpx.post(f"{keyed.base}{URL}/stream", timeout=120, **form).text
    assert sample[1] in events
    health = httpx.get(f"{keyed.base}/health", headers=headers).json()
    assert (health["worker"], health["model_loaded"], health["status"]) == ("running", True, "ok")


@pytest.mark.parametrize("how", [{"key": FIRST}, {"query": f"?token={SECOND}"}], ids=["header", "query"])
@pytest.mark.nightly
def test_a_right_key_gets_a_live_session(keyed, sample, speech, how):
    """By header as programs do, by query as pages do."""
    with _socket(keyed, **how) as socket:
        assert receive(socket)["status"] == "connected"
        assert _heard(socket, speech) == [sample[1]]


def test_a_right_key_gets_a_realtime_session_and_an_ephemeral_one(keyed):
    """As a subprotocol; the ephemeral key too, also from the worker after the one that issued it."""
    opening = {"path": "/v1/realtime", "query": "?intent=transcription"}

    def protocols(key):
        return {"subprotocols": ["realtime", f"openai-insecure-api-key.{key}"]}

    made = keyed.openai(api_key=FIRST).realtime.client_secrets.create(session={"type": "transcription"}).value
    for key in (FIRST, made):
        with _socket(keyed, **opening, **protocols(key)) as socket:
            assert socket.subprotocol == "realtime"
            assert receive(socket)["type"] == "session.created"
    assert _refusal(keyed, key=made) == (401, "invalid_api_key")
    wait_until_gone(kill_worker(keyed))
    keyed.wait_for(lambda health: health["worker"] == "running", timeout_s=60)
    with _socket(keyed, **opening, **protocols(made)) as socket:
        assert receive(socket)["type"] == "session.created"


def test_a_wrong_key_gets_nothing(keyed, sample):
    """The gateway turns it away, with or without a worker."""
    for key in ("", "sk-other"):
        headers = {"authorization": f"Bearer {key}"} if key else {}
        for path in ("/health", "/metrics", "/openapi.json", "/v1/models"):
            assert httpx.get(keyed.base + path, headers=headers).status_code == 401
        assert httpx.post(keyed.base + URL, headers=headers, files={"file": sample[0]}).status_code == 401
        code = "invalid_api_key" if key else "missing_api_key"
        assert _refusal(keyed, key=key) == (401, code)
        assert _refusal(keyed, "/v1/realtime", key=key) == (401, code)


@pytest.mark.parametrize(
    "by_query", [pytest.param(False, id="header"), pytest.param(True, id="query", marks=pytest.mark.nightly)]
)
@pytest.mark.nightly
def test_a_session_with_a_key_survives_the_death_of_its_worker(keyed, sample, speech, by_query):
    """In the middle of speech; the next worker is shown the same key."""
    how = {"query": f"?token={SECOND}"} if by_query else {"key": SECOND}
    with _socket(keyed, **how) as socket:
        receive(socket)
        socket.send(data(speech[:20_000]))
        wait_until_gone(kill_worker(keyed))
        assert _heard(socket, speech[20_000:]) == [sample[1]]


@pytest.mark.parametrize(
    "crash", [pytest.param(False, id="alive"), pytest.param(True, id="crashed", marks=pytest.mark.nightly)]
)
@pytest.mark.nightly
def test_a_session_is_resumed_by_its_key_alone(keyed, sample, speech, crash):
    """Another key gets what an unknown id gets. The right one may come by header once and by query once."""
    with _socket(keyed, key=FIRST) as socket:
        identity = receive(socket)["session_id"]
        socket.send(data(speech[:20_000]))
        socket.socket.shutdown(2)  # cut: the session waits for its client
    if crash:
        wait_until_gone(kill_worker(keyed))
        keyed.wait_for(lambda health: health["worker"] == "running", timeout_s=60)
    with _socket(keyed, key=SECOND, query=f"?session_id={identity}") as other:
        assert receive(other)["code"] == "session_not_found"
    for how in ({"query": f"?session_id={identity}&token={FIRST}"}, {"query": f"?session_id={identity}", "key": FIRST}):
        with _socket(keyed, **how) as socket:
            hello = receive(socket)
            assert hello["resumed"] is True
            socket.send(data(speech)[hello["received_bytes"] :][:8_000])
            socket.socket.shutdown(2)
    with _socket(keyed, key=FIRST, query=f"?session_id={identity}") as socket:
        hello = receive(socket)
        socket.send(data(speech)[hello["received_bytes"] :])
        act(socket, "flush")
        assert [text for text, *_ in finals(upto_flush(socket))] == [sample[1]]


@pytest.mark.nightly
def test_our_own_client_comes_back_with_its_key_after_a_crash(keyed, sample, speech):
    """Cut, the worker killed, resumed: nothing is missing."""
    client = LiveClient(keyed.base, LiveOptions(token=SECOND))
    client.send(data(speech[:30_000]))
    client.cut()
    kill_worker(keyed)
    client.resume()
    client.send(data(speech[30_000:]))
    client.flush()
    said = {}
    for line in client.lines():
        said[line.utterance] = line.text
        if line.ending == "flush":
            break
    client.close()
    assert [text for text in said.values() if text] == [sample[1]]


@pytest.mark.nightly
def test_a_share_is_counted_once_and_at_the_gateway(tmp_path, sample, long, fake_sample):
    """One at a time: a second gets 429 and a hint. A request that is sent again has one place, not two."""
    limits = {"API_KEYS": "sk-a,sk-b", "KEY_MAX_REQUESTS": "1", "MAX_BATCH": "1", "IDLE_TIMEOUT": "600"}
    with (
        running(tmp_path / "log", GATEWAY_MODE="true", **limits, **fake_sample) as server,
        ThreadPoolExecutor(1) as pool,
    ):
        assert server.client.get("/openapi.json").status_code == 200
        work = pool.submit(server.transcribe, long)

        def state():
            return httpx.get(f"{server.base}/health", headers={"api-key": "sk-b"}).json()

        _until(lambda: state()["queue"]["audio_held_s"] > 0)
        refused = httpx.get(f"{server.base}/v1/models", headers={"api-key": "sk-a"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        assert _refusal(server, key="sk-a") == (429, "rate_limit_exceeded")
        wait_until_gone(kill_worker(server))
        assert work.result().status_code == 200
        _until(lambda: server.client.get("/v1/models").status_code == 200)
        with _socket(server, key="sk-a") as socket:
            receive(socket)
            assert server.client.get("/v1/models").status_code == 429
            wait_until_gone(kill_worker(server))
            assert server.client.get("/v1/models").status_code == 429
        _until(lambda: server.client.get("/v1/models").status_code == 200)


def _until(holds):
    for _ in range(3_000):
        if holds():
            return
        time.sleep(0.02)
    raise AssertionError("never")


@pytest.mark.parametrize(
    ("method", "path", "origin", "status"),
    [
        ("GET", "/openapi.json", APP, 200),
        ("GET", "/v1/models", APP, 200),
        ("POST", URL, APP, 400),
        ("POST", "/v1/nothing", APP, 404),
        ("POST", URL, "https://evil.example", 403),
        ("GET", "/openapi.json", "https://evil.example", 200),
        ("OPTIONS", URL, APP, 200),
        ("OPTIONS", URL, "https://evil.example", 400),
    ],
)
def test_pages_of_another_site_get_the_same_headers_as_without_a_gateway(keyed, plain, method, path, origin, status):
    """What a browser reads of an answer is said once, whoever said it."""
    headers = {"origin": origin, "access-control-request-method": "POST", "access-control-request-headers": "api-key"}
    if method != "OPTIONS":
        headers = {"origin": origin, "api-key": FIRST}
    answers = [httpx.request(method, s.base + path, headers=headers, timeout=120) for s in (plain, keyed)]
    kept = [[(k, v) for k, v in sorted(a.headers.multi_items()) if k not in ANEW] for a in answers]
    assert kept[1] == kept[0]
    assert [a.status_code for a in answers] == [status, status]
    allowed = [v for k, v in kept[1] if k == "access-control-allow-origin"]
    assert allowed == ([APP] if origin == APP else [])


def test_pages_of_another_site_get_sockets_if_they_may(keyed):
    """403 before the handshake is over for all others."""
    assert _refusal(keyed, key=FIRST, origin="https://evil.example") == (403, "origin_not_allowed")
    with _socket(keyed, key=FIRST, origin=APP) as socket:
        assert receive(socket)["status"] == "connected"


@pytest.mark.nightly
def test_an_idle_worker_is_ended_with_keys_too(tmp_path, sample, fake_sample):
    """The gateway's own question whether it is idle is let in."""
    with running(tmp_path / "log", GATEWAY_MODE="true", API_KEYS=FIRST, IDLE_TIMEOUT="1", **fake_sample) as server:
        assert server.transcribe(sample[0]).json()["text"] == sample[1]
        pid = worker_of(server)
        server.wait_for(lambda health: health["worker"] == "stopped", timeout_s=60)
        wait_until_gone(pid)
        assert FIRST not in server.log()
