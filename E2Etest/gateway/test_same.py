"""Callers cannot tell a gateway from the server itself: the same answers, byte for byte, streams as they come."""

import json
import re

import numpy as np
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from asr_server.features.handover import continuation
from asr_server.features.handover.continuation import Continuation, TurnSettings
from E2Etest import recordings
from E2Etest.live.session import act, data, finals, open_session, pieces, receive, stream, upto_flush
from E2Etest.wire import answer, form, post

pytestmark = pytest.mark.integration
URL = "/v1/audio/transcriptions"
TONE = (np.sin(np.arange(16_000) * 0.2) * 8000).astype(np.int16)


# What every answer has anew.
ANEW = ("date", "x-request-id", "openai-processing-ms", "server-timing")


def _same(alone, gateway, method, path, **request):
    """Status, headers and body of both, without what every answer has anew: the time and the id."""
    answers = []
    for base in (alone, gateway):
        answer = base.client.request(method, path, **request)
        assert answer.headers["x-request-id"].startswith("req_")
        headers = {k: v for k, v in answer.headers.items() if k not in ANEW}
        body = re.sub(rb'"created":\d+', b"", answer.content)
        answers.append((answer.status_code, headers, body))
    assert answers[1] == answers[0]
    return answers[0]


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/docs",
        "/openapi.json",
        "/livez",
        "/readyz",
        "/v1/models",
        "/v1/models/whisper-1",
        "/v1/audio/voices",
        "/v1/audio/speech/voices?model_id=kokoro",
    ],
)
def test_every_page_is_the_same(alone, gateway, path):
    """Routes for people, clients and probes."""
    assert _same(alone, gateway, "GET", path)[0] in (200, 307)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/nothing", 404),
        ("GET", "/v1/models/nobody/nothing", 404),
        ("GET", URL, 405),
        ("DELETE", "/health", 405),
        ("HEAD", "/v1/models", 200),
        ("HEAD", "/v1/nothing", 404),
        ("OPTIONS", "/", 204),
        ("GET", "/ws/transcribe", 426),
        ("GET", "/ws/speech", 426),
        ("GET", "/v1/realtime", 426),
        ("GET", "/audio/transcriptions", 404),
        ("GET", "/v1/models/", 404),
        ("OPTIONS", URL, 405),
        ("POST", "/v1/nothing", 404),
        ("POST", "/v1/text/translations", 501),
    ],
)
def test_what_is_not_there_is_not_there(alone, gateway, method, path, status):
    """Unknown places and methods, in the same envelope; HEAD wherever GET is."""
    assert _same(alone, gateway, method, path)[0] == status


@pytest.mark.parametrize(
    "response_format",
    ["json", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("text", "srt", "vtt", "verbose_json"))],
)
def test_every_format_is_the_same(alone, gateway, sample, response_format):
    """The words in every shape; verbose_json but for the last digits of its probabilities."""
    fields = {"model": "whisper-1", "response_format": response_format}
    first, second = (s.transcribe(sample[0], **fields) for s in (alone, gateway))
    assert first.status_code == second.status_code == 200
    digits = re.compile(r"-?\d+\.\d{4,}")
    assert digits.sub("", second.text) == digits.sub("", first.text)


@pytest.mark.parametrize(
    "fields",
    [
        {"model": "nobody"},
        {"language": "tlh!"},
        {"language": "is"},
        {"response_format": "rtf"},
        {"prompt": "x" * 20_000},
    ],
)
def test_wrong_fields_are_reported_in_the_same_words(alone, gateway, sample, fields):
    """Errors of the worker come through as they are."""
    form = {"model": "whisper-1", **fields}
    assert 400 <= _same(alone, gateway, "POST", URL, files={"file": ("a.wav", sample[0])}, data=form)[0] < 500


def test_bodies_that_are_no_recording_or_no_form(alone, gateway):
    """Empty, text, JSON, a form that ends in the middle, one byte too short for its boundary."""
    for audio in (b"", b"no audio" * 100, recordings.wav(TONE[:160])):
        _same(alone, gateway, "POST", URL, files={"file": ("a.wav", audio)}, data={"model": "whisper-1"})
    _same(alone, gateway, "POST", URL, json={"file": "x"})
    _same(alone, gateway, "POST", URL)
    broken = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nabc'
    headers = {"content-type": "multipart/form-data; boundary=b"}
    _same(alone, gateway, "POST", URL, content=broken, headers=headers)
    _same(alone, gateway, "POST", URL, content=iter([broken[:20], broken[20:]]), headers=headers)


@pytest.mark.parametrize(
    ("request_bytes", "ends"),
    [
        (post(b"Preamble.\r\n" + form(recordings.sample()[0], b"name=\"file\"; filename*=UTF-8''a.wav")), False),
        (post(form(b"RIFF")[:-9]), False),
        (post(form(b"RIFF")[:-9], length=99), True),
        (post(form(recordings.sample()[0])), True),
        (post(form(recordings.sample()[0]), version=b"1.0"), False),
        (
            post(form(recordings.sample()[0]), version=b"1.0", path=f"{URL}/stream").replace(
                b"Host: localhost\r\n", b""
            ),
            False,
        ),
        (b"OPTIONS / HTTP/1.0\r\n\r\n", False),
        (b"GET /v1/models HTTP/1.0\r\n\r\n", True),
    ],
    ids=["preamble", "no end", "cut", "half closed", "1.0", "1.0 stream", "1.0 options", "1.0 half closed"],
)
def test_the_wire_is_the_same(alone, gateway, request_bytes, ends):
    """What E2Etest/contract/test_wire.py claims of a server."""
    ours, theirs = (answer(base, request_bytes, ends=ends) for base in (gateway, alone))
    for found in (ours, theirs):
        for name in ANEW:
            found.headers.pop(name, None)
    digits = re.compile(rb'"created":\d+')
    assert (ours.status, ours.headers) == (theirs.status, theirs.headers)
    assert digits.sub(b"", ours.body) == digits.sub(b"", theirs.body)


def test_an_unknown_socket_has_the_same_answer(alone, gateway):
    """A 404 with a hint, by the worker."""
    answers = []
    for base in (alone, gateway):
        with pytest.raises(InvalidStatus) as refused, connect(base.base.replace("http", "ws", 1) + "/realtime"):
            pass
        answers.append((refused.value.response.status_code, refused.value.response.body))
    assert answers[0] == answers[1]
    assert answers[0][0] == 404


def test_an_upload_over_the_cap_is_refused_while_it_is_read(alone, gateway):
    """With a length and without one, as the server itself refuses it."""

    def body():
        yield b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
        for _ in range(64):
            yield bytes(256 * 1024)

    headers = {"content-type": "multipart/form-data; boundary=b"}
    files = {"file": ("a.wav", bytes(5 * 1024 * 1024))}
    assert _same(alone, gateway, "POST", URL, files=files, data={"model": "whisper-1"})[0] == 413
    answers = [s.client.post(URL, content=body(), headers=headers) for s in (alone, gateway)]
    assert answers[1].status_code == answers[0].status_code == 413
    assert answers[1].content == answers[0].content


def test_request_ids_are_kept_or_made_and_are_the_same_in_both_processes(gateway):
    """The caller's id reaches the worker, a made one too: both log it."""
    given = gateway.client.get("/v1/nothing", headers={"X-Request-ID": "caller-7"})
    assert given.headers["x-request-id"] == "caller-7"
    made = gateway.client.get("/v1/nothing", headers={"X-Request-ID": "a b"}).headers["x-request-id"]
    assert made.startswith("req_")
    # A line is written behind the answer.
    gateway.wait_for(lambda _: all(gateway.log().count(f"id={name} ") == 2 for name in ("caller-7", made)))


def test_an_event_stream_comes_while_the_work_goes_on(gateway, alone, long):
    """After the first event the engine is still busy with the rest; all events together are the server's own."""
    form = {"model": "whisper-1"}
    with gateway.client.stream("POST", f"{URL}/stream", files={"file": ("a.wav", long)}, data=form) as answer:
        parts = answer.iter_text()
        first = next(parts)
        assert gateway.health()["queue"]["audio_held_s"] > 0
        raw = first + "".join(parts)
    with alone.client.stream("POST", f"{URL}/stream", files={"file": ("a.wav", long)}, data=form) as plain:
        assert raw == "".join(plain.iter_text())
    assert answer.headers["content-type"] == plain.headers["content-type"]


def test_a_caller_that_leaves_frees_the_workers_work(gateway, long):
    """Also in the middle of a stream."""
    form = {"model": "whisper-1"}
    with gateway.client.stream("POST", f"{URL}/stream", files={"file": ("a.wav", long)}, data=form) as answer:
        next(answer.iter_text())
    gateway.wait_for(lambda h: h["queue"]["audio_held_s"] == 0 and h["queue"]["running"] == 0)


def test_health_has_the_servers_fields_and_the_workers_state(alone, gateway):
    """Every field of the server's, the mode, and where the worker is."""
    ours, theirs = gateway.health(), alone.health()
    assert set(ours) == set(theirs) | {"worker"}
    assert set(ours["queue"]) == set(theirs["queue"])
    assert (ours["mode"], ours["worker"], ours["status"]) == ("gateway", "running", "ok")
    (line,) = (option for option in ours["plan"] if option["name"] == "gateway_mode")
    assert line["active"]


def test_live_words_are_those_of_the_server_itself(gateway, alone, speech):
    """The same finals, however the audio is cut; an utterance has the same texts at the same times."""
    body = data(np.concatenate([speech, speech]))
    plain = finals(stream(alone, [body]))
    assert len(plain) == 2
    assert finals(stream(gateway, [body])) == plain
    assert finals(stream(gateway, pieces(body, 3_201))) == plain


def test_live_actions_and_errors_are_those_of_the_server_itself(gateway, alone):
    """Every action, and every wrong frame and query, has the same answer and close code."""

    def said(base):
        with open_session(base) as socket:
            for action in ("ping", "reset", "flush", "settled"):
                act(socket, action)
                yield receive(socket)
            act(socket, "config", language="en-US", use_server_vad=False, hotwords=["lamp"])
            yield receive(socket)
            wrong = ("{", "[1]", '{"action":"dance"}', '{"action":"config","language":"tlh"}')
            for frame in (*wrong, '{"action":"flush","language":"tlh"}', '{"action":"config","hotwords":"\\ud800"}'):
                socket.send(frame)
                yield receive(socket)
        for query in ({"sample_rate": "11025"}, {"language": "tlh"}, {"received": "-1"}, {"session_id": "live_0.none"}):
            with open_session(base, **query) as socket:
                yield socket.hello
                while True:
                    try:
                        socket.recv(timeout=10)
                    except Exception as closed:
                        yield closed.rcvd.code, closed.rcvd.reason
                        break

    ours, theirs = list(said(gateway)), list(said(alone))
    for message in (m for m in ours + theirs if isinstance(m, dict)):
        message.pop("lag_ms", None)
    assert ours == theirs


@pytest.mark.parametrize("language", ["German", "Klingon"])
def test_a_state_of_another_server_is_taken_or_refused_as_by_the_server_itself(gateway, alone, language):
    """One that names a language which the model does not know is refused, as are states that no server issued."""

    def said(base):
        identity = f"live_0123abcd.{'x' * 22}"
        begin = Continuation(identity, 16 * "0", 2, 32_000, 64_000, configured=TurnSettings(language))
        state = continuation.wire_message(begin)["state"]
        for frame in (f'{{"action":"continue","state":"{state}"}}', '{"action":"continue","state":"e30"}', "{}"):
            with connect(f"{base.live_url}?handover=true&session_id={identity}&received=2") as socket:
                socket.send(frame)
                hello = receive(socket)
                yield {name: hello.get(name) for name in ("status", "code", "error", "continued", "received_bytes")}

    ours, theirs = list(said(gateway)), list(said(alone))
    assert ours == theirs
    assert ours[0]["code"] == (None if language == "German" else "unsupported_language")
    assert [each["code"] for each in ours[1:]] == ["invalid_value", "invalid_value"]


def test_a_session_is_resumed_by_any_spelling_of_a_number(gateway, alone, speech):
    """Of the last final that the client has; what is no number, or no possible one, is refused."""
    kept = []
    for base in (alone, gateway):
        with open_session(base) as socket:
            identity = socket.hello["session_id"]
            socket.send(data(speech))
            act(socket, "flush")
            upto_flush(socket)
        for received in ("2", "2.0", "%2B2", "-1", "x", "9" * 5_000):
            with open_session(base, session_id=identity, received=received) as socket:
                kept.append((received[:9], socket.hello.get("received_bytes"), socket.hello.get("code")))
    half = len(kept) // 2
    assert kept[:half] == kept[half:]
    assert [told for _, told, _ in kept[:half]] == [2 * len(speech)] * 3 + [None] * 3


@pytest.mark.parametrize("encoding", ["pcm_f32le", "opus"])
def test_live_audio_in_other_encodings_is_heard(gateway, speech, encoding):
    """The gateway decodes floats itself, and refuses half a sample; it relays Opus to the worker."""
    floats = (speech / 32_768).astype("<f4").tobytes()
    packets = recordings.packets(recordings.encoded("ogg", "libopus", speech))
    expected = [text for text, *_ in finals(stream(gateway, [data(speech)]))]
    with open_session(gateway, encoding=encoding) as socket:
        for frame in packets if encoding == "opus" else pieces(floats, 6_400):
            socket.send(frame)
        act(socket, "flush")
        assert [text for text, *_ in finals(upto_flush(socket))] == expected
        socket.send(bytes(3_001))
        while "code" not in (refused := receive(socket)):
            pass
        assert refused["code"] == ("invalid_audio" if encoding == "opus" else "invalid_value")


def test_a_live_session_is_resumed_through_the_gateway(gateway, speech):
    """Its own client cuts the connection, comes back and misses nothing; a second connection takes it over."""
    from websockets.exceptions import ConnectionClosed

    from asr_server.client.live import LiveClient

    body = data(speech)
    whole = finals(stream(gateway, [body]))
    client, lines = LiveClient(gateway.base), {}
    for start, stop in [(0, 50_001), (50_001, 90_000), (90_000, len(body))]:
        client.send(body[start:stop])
        if stop < len(body):
            client.cut()
            client.resume()
    client.flush()
    for line in client.lines():
        lines[line.utterance] = line
        if line.ending == "flush":
            break
    assert [(n.text, n.start_s, n.end_s, n.ending) for n in lines.values() if n.text] == whole
    with open_session(gateway, session_id=client.session_id, received=0) as second:
        assert second.hello["received_bytes"] == len(body)
        with pytest.raises(ConnectionClosed) as closed:
            list(iter(lambda: client._socket.recv(timeout=10), None))
        assert closed.value.rcvd.code == 4009
        act(second, "flush")
        assert [m["text"] for m in upto_flush(second) if m["text"]] == [whole[0][0]]
    client.close()


def test_nothing_secret_is_logged(gateway, speech):
    """Neither words nor session ids nor a token of the query."""
    with open_session(gateway, token="very-secret") as socket:
        identity = socket.hello["session_id"]
        socket.send(data(speech))
        act(socket, "flush")
        words = finals(upto_flush(socket))[0][0]
    log = gateway.log()
    assert not [secret for secret in ("very-secret", identity, words) if secret in log]


def test_a_text_that_arrives_in_pieces_has_the_same_samples(alone, gateway):
    """And a cancelled one the same answer; the socket ends in the same way."""

    def spoken(server):
        frames = []
        with connect(f"{server.base.replace('http', 'ws', 1)}/ws/speech", compression=None) as socket:
            for piece in ("One thing. Ano", "ther thi", "ng."):
                socket.send(json.dumps({"type": "text", "text": piece}))
            socket.send('{"type": "flush"}')
            while not frames or frames[-1] != '{"type":"flushed"}':
                frames.append(socket.recv(timeout=60))
            socket.send('{"type": "cancel"}')
            socket.send('{"type": "end"}')
            frames += list(socket)
            return socket.close_code, [frame for frame in frames if '"started"' not in str(frame)]

    assert spoken(alone) == spoken(gateway)
