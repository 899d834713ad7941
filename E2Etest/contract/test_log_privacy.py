"""Nothing that callers send or hear is in the log, at its most talkative."""

import hashlib
import itertools
import json
from contextlib import suppress
from urllib.parse import quote

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidMessage, InvalidStatus

from E2Etest.drive import recordings
from E2Etest.drive.process import FIRST, SECOND
from E2Etest.drive.session import act, connected, data, open_session, receive
from E2Etest.live.readers import reader, share


@pytest.fixture(scope="module")
def heard(guarded):
    """A bit of everything, with canaries in it; the words that were heard."""
    audio = recordings.wav(recordings.samples())
    fields = {"name": "canary-name.wav", "prompt": "canary prompt", "hotwords": "canary word"}
    guarded.health()
    words = [guarded.transcribe(audio, **fields).json()["text"]]
    words.append(_translated(guarded, audio))
    for broken in ({"language": "canary"}, {"model": "canary"}, {"response_format": "canary"}):
        guarded.transcribe(audio, **broken)
    guarded.transcribe(b"canary" * 99, name="canary.mp3")
    guarded.client.get("/canary?token=canary", headers={"x-canary": "canary", "user-agent": "canary"})
    guarded.client.get(f"/v1/jobs/canary?token={FIRST}")
    guarded.client.get("/v1/models", headers={"x-request-id": "not canary, for it has spaces"})
    guarded.job(audio, prompt="canary")
    httpx.get(f"{guarded.base}/v1/models", headers={"Authorization": "Bearer sk-canary-wrong"})
    _talk(guarded)
    _everywhere(guarded)
    return words


# Texts that a program may take for numbers, and text that none does.
VALUES = ("canary", "²canary", "٣canary", "canary" + "1" * 5_000, "\x00canary")
LISTEN = ("endpointing", "utterance_end_ms", "sample_rate", "channels", "encoding", "language", "redact", "keyterm")
LIVE = ("sample_rate", "channels", "language", "session_id", "reopened", "encoding", "hotwords", "speakers")
SOCKETS = {"/v1/listen": LISTEN, "/ws/transcribe": LIVE, "/ws/speech": LIVE, "/v1/realtime": ("intent", "model")}


def _everywhere(server):
    """Each value as each path, query, header and field of all routes, and as each parameter of the sockets."""
    spec = server.client.get("/openapi.json").json()
    for path, operations in spec["paths"].items():
        for method, operation in operations.items():
            for value in VALUES:
                _send(server, spec, method.upper(), path, operation, value)
    for path, names in SOCKETS.items():
        for name, value in itertools.product(names, VALUES):
            asked = f"{path}?token={SECOND}&{name}={quote(value)}"
            with suppress(InvalidStatus, InvalidMessage, ConnectionClosed), connected(server, asked) as socket:
                socket.send(value[:20])


def _send(server, spec, method, path, operation, value):
    """One request with the value everywhere, and one for each field of its body."""
    asked = operation.get("parameters", [])
    for parameter in asked:
        path = path.replace(f"{{{parameter['name']}}}", quote(value, safe=""))
    query = {parameter["name"]: value for parameter in asked if parameter["in"] == "query"}
    headers = {one["name"]: quote(value) for one in asked if one["in"] == "header"}
    bodies = operation.get("requestBody", {}).get("content", {})
    schema = next((one.get("schema", {}) for one in bodies.values()), {})
    schema = spec["components"]["schemas"][schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
    names = list(schema.get("properties", {}))
    for some in [names, *([name] for name in names)] if value == VALUES[0] else [names]:
        fields = dict.fromkeys(some, value)
        form = {"data": fields, "files": {"file": (value[:20], b"RIFFcanary")}}
        body = {"json": fields} if "application/json" in bodies else form if "multipart/form-data" in bodies else {}
        with suppress(httpx.InvalidURL, httpx.RemoteProtocolError):
            server.client.request(method, path, params=query, headers=headers, timeout=60, **body)


def _translated(server, audio):
    """What comes back of a translation; and subtitles of the same, which have word times."""
    translation = {"model": "demo", "language": "de", "glossary": '{"canary": "canary"}'}
    for path, fields in (("subtitles", {"hotwords": "canary"}), ("translations", translation)):
        answer = server.post(f"/v1/audio/{path}", audio, name="canary.wav", **fields)
        assert answer.status_code == 200, answer.text
    aligned = {"files": {"file": ("canary.wav", audio), "text": ("canary.txt", b"canary")}, "data": {"language": "en"}}
    assert server.client.post("/v1/audio/alignments", **aligned).status_code == 200
    return answer.json()["text"]


def _talk(server):
    with connected(server, f"/ws/transcribe?token={SECOND}&hotwords=canary&language=en") as socket:
        receive(socket)
        act(socket, "canary")
        act(socket, "config", hotwords="canary")
        socket.send(data(recordings.samples()))
        act(socket, "flush")
        while receive(socket).get("ending") != "flush":
            pass
    for path in ("transcribe?token=sk-canary-wrong", "transcribe/canary?token=canary", "speech?token=canary"):
        with pytest.raises(InvalidStatus), connected(server, f"/ws/{path}"):
            pass
    protocols = ["realtime", f"openai-insecure-api-key.{FIRST}"]
    with connected(server, "/v1/realtime?model=canary", subprotocols=protocols) as socket:
        receive(socket)
        for frame in ("canary", json.dumps({"type": "canary", "event_id": "canary"})):
            socket.send(frame)
            receive(socket)
    with connected(server, "/v1/realtime", subprotocols=["openai-insecure-api-key.sk-canary-wrong"]) as socket:
        receive(socket)


@pytest.mark.guarantee("logs")
def test_no_canary_is_in_the_log(guarded, heard, note):
    """Keys, another service's too, prompts, names, headers, paths, actions. Nor is a refusal a fault of ours."""
    lines = guarded.log().splitlines()
    assert [line for line in lines if "canary" in line.lower()] == []
    assert [line for line in lines if any(words in line for words in heard)] == []
    assert [line for line in lines if " ERROR " in line] == []
    assert any(" DEBUG " in line for line in lines)
    note(f"{len(lines)} log lines searched")


@pytest.mark.websocket
def test_the_token_of_a_shared_session_is_in_no_line(guarded):
    """Nor is the id of the session, with which it could be resumed."""
    with open_session(guarded) as socket:
        link = share(guarded, socket)
        with reader(guarded, link) as found:
            next(found)
        guarded.client.get(link["captions"])
        guarded.client.delete(f"/v1/live/{socket.hello['session_id']}/share/{link['token']}")
    assert "/v1/live/shared/{token}/captions.vtt" in guarded.log()
    assert link["token"] not in guarded.log()
    assert socket.hello["session_id"] not in guarded.log()


def test_a_line_names_its_key_by_a_fingerprint(guarded, heard):
    """The first eight hex digits of its SHA-256, so that an operator can tell whose request it was."""
    fingerprint = hashlib.sha256(FIRST.encode()).hexdigest()[:8]
    mine = [line for line in guarded.log().splitlines() if f"key={fingerprint}" in line]
    assert any("route=/v1/audio/transcriptions" in line for line in mine)
    refused = [line for line in guarded.log().splitlines() if "outcome=invalid_api_key" in line]
    assert refused
    assert not any("key=" in line for line in refused)
