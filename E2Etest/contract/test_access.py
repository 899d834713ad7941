"""Keys on a real server: files, live sockets, realtime, jobs; as the clients in use send them."""

import json
import os
import subprocess
import sys
from socket import SHUT_RDWR

import httpx
import openai
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from asr_server.client.live import LiveClient, LiveError, LiveOptions
from E2Etest.drive import recordings
from E2Etest.drive.process import FIRST, SECOND, refusal, until
from E2Etest.drive.session import act, connected, data, receive, upto_flush


def _refusal(server, path, **how):
    with pytest.raises(InvalidStatus) as refused, connected(server, path, **how):
        pass
    answer = refused.value.response
    code = json.loads(answer.body)["error"]["code"]
    assert answer.status_code != 429 or 1 <= int(answer.headers["retry-after"]) <= 60
    return answer.status_code, code


@pytest.mark.guarantee("keys")
def test_every_route_and_socket_refuses_who_has_no_key(guarded, note):
    """All that the schema names, the live sockets and a path that does not exist: 401, whatever name is in `Host`."""
    schema = guarded.client.get("/openapi.json").json()["paths"]
    # Who reads a shared session has its token in place of a key.
    open_to_all, shared = {"/livez", "/readyz"}, {path for path in schema if path.startswith("/v1/live/shared/")}
    paths = {*schema, "/metrics", "/openapi.json", "/no/such/path"} - open_to_all - shared
    verbs = ("get", "post", "put", "delete", "head", "options", "patch", "query")
    # A page that asks for a key may be read at the root.
    routes = [(verb, path) for path in sorted(paths) for verb in verbs if path != "/" or verb in ("post", "put")]
    assert ("post", "/v1/audio/transcriptions") in routes
    with httpx.Client(base_url=guarded.base) as caller:
        for verb, path in routes:
            for headers in ({}, {"Authorization": "Bearer sk-other"}, {"Host": "a.name.of.mine"}):
                answer = caller.request(verb, path.replace("{", "").replace("}", ""), headers=headers)
                assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer"), (verb, path)
    assert _refusal(guarded, "/no/such/socket") == (401, "missing_api_key")
    for headers in ({}, {"Authorization": "Bearer x"}):  # commands print the message as it is
        text = httpx.get(f"{guarded.base}/v1/models", headers=headers).text
        assert "ASR_API_KEY" in text
        assert "--api-key-file" in text
    note(f"{len(routes)} routes and 3 WebSockets")


@pytest.mark.guarantee("keys")
def test_a_server_without_keys_refuses_foreign_names_and_pages(server):
    """403 for a name that is not its own, and for a page of another site: what a browser can be made to send."""
    for path in ("/v1/models", "/", "/docs", "/health", "/no/such/path"):
        named = httpx.get(server.base + path, headers={"Host": "evil.example:8100"})
        assert refusal(named)[:2] == (403, "host_not_allowed")
    posted = httpx.post(f"{server.base}/v1/audio/transcriptions", headers={"Origin": "https://evil.example"})
    assert refusal(posted)[:2] == (403, "origin_not_allowed")
    for path in ("/ws/transcribe", "/v1/realtime"):
        assert _refusal(server, path, origin="https://evil.example") == (403, "origin_not_allowed")


def test_openais_client_gets_in_with_a_key_and_its_error_without(guarded, sample):
    """`AuthenticationError` with the code; the words with a right key."""
    with pytest.raises(openai.AuthenticationError) as refused:
        guarded.openai(api_key="sk-other").audio.transcriptions.create(file=sample[0], model="whisper-1")
    assert (refused.value.code, refused.value.type) == ("invalid_api_key", "invalid_request_error")
    assert refused.value.request_id
    for key in (FIRST, SECOND):
        heard = guarded.openai(api_key=key).audio.transcriptions.create(file=sample[0], model="whisper-1")
        assert heard.text == sample[1]


def test_probes_need_no_key_and_nothing_shows_one(guarded):
    """`/livez`, `/readyz` and the page that asks for a key answer anyone; `/health` and the schema need one, and hold
    none."""
    for path in ("/livez", "/readyz", "/docs", "/static-offline-docs/swagger-ui.css"):
        assert httpx.get(guarded.base + path).status_code == 200
    for path in ("/health", "/openapi.json", "/v1/models"):
        assert httpx.get(guarded.base + path).status_code == 401
        shown = guarded.client.get(path)
        assert shown.status_code == 200
        assert "canary" not in shown.text + str(shown.headers)


@pytest.mark.guarantee("keys")
@pytest.mark.parametrize("path", ["/ws/transcribe", "/v1/realtime?intent=transcription"])
def test_sockets_are_refused_before_they_open(guarded, path):
    """401 without a key or with a wrong one, 403 for a page of another site although its key is right."""
    bare = path.partition("?")[0]
    assert _refusal(guarded, path) == (401, "missing_api_key")
    assert _refusal(guarded, path, key="sk-other") == (401, "invalid_api_key")
    assert _refusal(guarded, f"{bare}?token=sk-other") == (401, "invalid_api_key")
    assert _refusal(guarded, path, key=FIRST, origin="https://evil.example") == (403, "origin_not_allowed")
    assert "ALLOWED_ORIGINS does not name it" in guarded.log()
    with connected(guarded, path, key=FIRST, origin=guarded.base) as socket:
        assert "error" not in receive(socket)


def test_the_live_clients_send_the_key(guarded):
    """By header from a program, by query from a page; the session hears."""
    pcm = data(recordings.samples())
    with LiveClient(guarded.base, LiveOptions(token=FIRST)) as client:
        client.send(pcm)
        client.flush()
        assert next(line for line in client.lines() if line.final).text
    with connected(guarded, f"/ws/transcribe?token={SECOND}") as socket:
        receive(socket)
        socket.send(pcm)
        act(socket, "flush")
        assert upto_flush(socket)
    with pytest.raises(LiveError) as refused:
        LiveClient(guarded.base, LiveOptions(token="sk-other"))
    assert refused.value.code == "invalid_api_key"


def test_the_live_command_takes_the_key_from_the_environment(guarded, tmp_path):
    """A command line is seen by everyone on the machine; without a key it says what the server said."""
    audio = tmp_path / "a.wav"
    audio.write_bytes(recordings.sample()[0])
    command = [sys.executable, "-m", "asr_server", "live", "--server", guarded.base, "--file", audio, "--speed", "0"]
    for keys, code in ((FIRST, 0), ("", 1)):
        done = subprocess.run(
            command, env={**os.environ, "ASR_API_KEY": keys}, cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == code, done.stderr
    assert "API key" in done.stderr


def test_an_ephemeral_key_opens_a_realtime_session_and_nothing_else(guarded, sample):
    """Made with a real key; good as a browser's subprotocol; no request, no native session, no further key by it."""
    assert httpx.post(f"{guarded.base}/v1/realtime/client_secrets").status_code == 401
    made = guarded.openai(api_key=FIRST).realtime.client_secrets.create(session={"type": "transcription"})
    with connected(
        guarded, "/v1/realtime", subprotocols=["realtime", f"openai-insecure-api-key.{made.value}"]
    ) as socket:
        assert receive(socket)["type"] == "session.created"
    with pytest.raises(openai.AuthenticationError):
        guarded.openai(api_key=made.value).realtime.client_secrets.create(session={"type": "transcription"})
    with pytest.raises(openai.AuthenticationError):
        guarded.openai(api_key=made.value).audio.transcriptions.create(file=sample[0], model="whisper-1")
    assert _refusal(guarded, "/ws/transcribe", key=made.value) == (401, "invalid_api_key")
    with connected(guarded, "/v1/realtime", subprotocols=["realtime", "openai-insecure-api-key.sk-other"]) as socket:
        assert receive(socket)["error"]["code"] == "invalid_api_key"
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv()
    assert closed.value.rcvd.code == 3000


def test_a_job_is_there_for_its_key_alone(guarded, sample):
    """Another key of the same server gets 404 for all of it, and cannot remove it."""
    job = guarded.post("/v1/jobs", sample[0]).json()["id"]
    for method, path in (("GET", ""), ("GET", "/result"), ("GET", "/events"), ("DELETE", "")):
        answer = httpx.request(method, f"{guarded.base}/v1/jobs/{job}{path}", headers={"api-key": SECOND})
        assert refusal(answer)[:2] == (404, "job_not_found")
    assert guarded.client.delete(f"/v1/jobs/{job}").status_code == 200


def test_a_session_is_resumed_by_its_key_alone(guarded):
    """Another key that knows the id gets what an unknown id gets; the session goes on."""
    with connected(guarded, "/ws/transcribe", key=FIRST) as socket:
        identity = receive(socket)["session_id"]
    with connected(guarded, f"/ws/transcribe?session_id={identity}", key=SECOND) as socket:
        assert receive(socket)["code"] == "session_not_found"
    with connected(guarded, f"/ws/transcribe?session_id={identity}", key=FIRST) as socket:
        assert receive(socket)["resumed"] is True


def test_sessions_and_requests_share_a_keys_limit(start):
    """With one at a time, an open session keeps requests out with 429 and a hint, until it ends."""
    with start(API_KEYS="sk-a,sk-b", KEY_MAX_REQUESTS="1") as server:
        with connected(server, "/ws/transcribe", key="sk-a") as socket:
            receive(socket)
            refused = server.client.get("/v1/models")
            assert refusal(refused)[:2] == (429, "rate_limit_exceeded")
            assert 1 <= int(refused.headers["retry-after"]) <= 60
            assert _refusal(server, "/v1/realtime", key="sk-a") == (429, "rate_limit_exceeded")
            assert httpx.get(f"{server.base}/v1/models", headers={"api-key": "sk-b"}).status_code == 200
        until(lambda: server.client.get("/v1/models").status_code == 200)


def test_live_sessions_have_a_limit_of_their_own(start):
    """429 with a hint on both sockets, and requests go on; an abandoned session gives way to its caller's next one."""
    with start(MAX_LIVE_SESSIONS="2") as server:
        with connected(server, "/ws/transcribe") as socket:
            abandoned = receive(socket)["session_id"]
            for path in ("/ws/transcribe", "/v1/realtime"):
                assert _refusal(server, path) == (429, "rate_limit_exceeded")
            assert server.client.get("/v1/models").status_code == 200
            assert server.health()["live"] == {"sessions": 1, "waiting": 0, "limit": 2, "free": 1}
            socket.socket.shutdown(SHUT_RDWR)
        server.wait_for(lambda health: health["live"]["waiting"] == 1)
        with connected(server, "/ws/transcribe") as socket:
            assert receive(socket)["status"] == "connected"
            assert server.health()["live"] == {"sessions": 1, "waiting": 0, "limit": 2, "free": 1}
        # Until the server has noticed that the second client has left, its caller has no place for a third.
        server.wait_for(lambda health: health["live"]["waiting"] == 1)
        with connected(server, f"/ws/transcribe?session_id={abandoned}") as socket:
            assert receive(socket)["code"] == "session_not_found"


def test_a_client_that_comes_back_needs_no_second_place(start):
    """A client may reconnect before the server notices the cut. Sockets that cannot resume take a second place."""
    key = "sk-a"
    with start(API_KEYS=key, KEY_MAX_REQUESTS="1") as server, connected(server, "/ws/transcribe", key=key) as socket:
        query = f"?session_id={receive(socket)['session_id']}"
        for path in ("/ws/speech", "/v1/realtime"):
            assert _refusal(server, path + query, key=key) == (429, "rate_limit_exceeded")
        with connected(server, f"/ws/transcribe{query}", key=key) as again:
            assert receive(again)["resumed"] is True
            assert receive(socket)["code"] == "session_taken"
            again.socket.shutdown(SHUT_RDWR)
        with connected(server, f"/ws/transcribe{query}", key=key) as third:
            assert receive(third)["resumed"] is True
