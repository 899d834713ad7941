"""Bad input: each with its code, none a 5xx, and the server goes on."""

import gzip
import json

import numpy as np
import openai
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from E2Etest import recordings

pytestmark = pytest.mark.demo_server

WORDS = b"this is plain text and no recording at all, whatever its name says\n" * 20
TONE = (np.sin(np.arange(16_000) * 0.2) * 8000).astype(np.int16)


def _error(answer):
    assert answer.status_code < 500, answer.text
    body = answer.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    return answer.status_code, body["error"]["code"], body["error"]["param"]


@pytest.mark.parametrize(
    ("audio", "code"),
    [
        (b"", "empty_file"),
        (WORDS, "invalid_audio"),
        (recordings.wav(np.zeros(0, np.int16)), "audio_too_short"),
        (b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n", "invalid_audio"),
    ],
    ids=["empty", "text", "44-byte", "m3u8"],
)
def test_what_is_no_recording(server, audio, code):
    """Each kind of non-recording has its code, and the field at fault is named."""
    assert _error(server.transcribe(audio)) == (400, code, "file")


def test_too_long_a_recording(server):
    """Over MAX_AUDIO_S (120 s here), whatever the header says; a small file can hold much audio."""
    long = recordings.wav(np.zeros(130 * 8000, np.int16), rate=8000)
    assert _error(server.transcribe(long)) == (400, "audio_too_long", "file")


@pytest.mark.parametrize("fields", [1, 4])
def test_more_text_than_a_form_may_have(server, sample, fields):
    """In one field or in all together."""
    answer = server.transcribe(sample[0], **{f"nonsense{n}": "a" * (262_144 // fields + 1) for n in range(fields)})
    assert _error(answer)[:2] == (400, "malformed_body")
    assert "256 KiB" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"model": "nobody"}, (404, "model_not_found", "model")),
        ({"language": "tlh!"}, (400, "invalid_language_format", "language")),
        ({"language": "is"}, (400, "unsupported_language", "language")),
        ({"temperature": "warm"}, (400, "invalid_value", "temperature")),
        ({f"field{n}": "x" * 20_000 for n in range(14)}, (400, "malformed_body", None)),
    ],
)
def test_wrong_fields(server, sample, fields, expected):
    """Every wrong field is named, before any audio is decoded."""
    assert _error(server.transcribe(sample[0], **fields)) == expected


def test_missing_and_misplaced_files(server):
    """No file, or text where the file should be."""
    post = server.client.post
    url = "/v1/audio/transcriptions"
    missing = (400, "missing_required_parameter", "file")
    assert _error(post(url, files={"other": b"x"}, data={"model": "demo"})) == missing
    text = post(url, files={"model": (None, "demo"), "file": (None, "text")})
    assert _error(text) == missing
    assert "file=@recording.wav" in text.json()["error"]["message"]


def test_bodies_that_are_no_form(server):
    """JSON, nothing, a form without boundary, a form that ends in the middle."""
    url, post = "/v1/audio/transcriptions", server.client.post
    unsupported = (400, "unsupported_content_type", None)
    assert _error(post(url, json={"file": "x"})) == unsupported
    assert _error(post(url)) == unsupported
    assert _error(post(url, content=b"x", headers={"content-type": "multipart/form-data"}))[1] == "malformed_body"
    broken = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nabc'
    answer = post(url, content=broken, headers={"content-type": "multipart/form-data; boundary=b"})
    assert _error(answer)[1] == "malformed_body"
    junk = post(url, content=b"junk" * 100, headers={"content-type": "multipart/form-data; boundary=b"})
    assert _error(junk)[1] == "malformed_body"


def test_an_upload_over_the_cap_with_a_length(server):
    """Refused by its declared length; the limit here is 4 MiB."""
    assert _error(server.transcribe(bytes(5 * 1024 * 1024))) == (413, "file_too_large", "file")


def test_an_upload_over_the_cap_without_a_length(server):
    """A chunked body is refused while it is read, and the answer arrives."""

    def body():
        yield b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
        for _ in range(64):
            yield bytes(256 * 1024)

    answer = server.client.post(
        "/v1/audio/transcriptions", content=body(), headers={"content-type": "multipart/form-data; boundary=b"}
    )
    assert _error(answer) == (413, "file_too_large", "file")


def test_unknown_places_and_methods(server):
    """Routes and methods that do not exist answer in the same envelope."""
    assert _error(server.client.get("/v1/nothing")) == (404, None, None)
    assert _error(server.client.get("/v1/audio/transcriptions"))[:2] == (405, "method_not_allowed")


def test_after_all_that_it_still_hears(server, sample):
    """None of the above hurt the server, and none of it is in the log as text."""
    assert server.transcribe(sample[0]).json()["text"] == sample[1]
    log = server.log()
    assert "Traceback" not in log
    assert sample[1] not in log


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("/audio/transcriptions", "Did you mean /v1/audio/transcriptions?"),
        ("/v1/v1/models", "It has /v1 twice"),
        ("/health/", "Leave out the slash"),
        ("//v1/models", "two slashes"),
        ("/proxy/v1/audio/transcriptions", "Did you mean /v1/audio/transcriptions?"),
        ("/v1/speech-to-text", "POST /v1/audio/transcriptions"),
        ("/v2/transcript/x", "POST /v1/jobs"),
        ("/v1/realtime/calls", "WebRTC is not served"),
        ("/v1/chat/completions", "no language model"),
    ],
)
def test_a_wrong_base_url_is_recognized(server, path, hint):
    """Clients join it with their paths in different ways; nobody is redirected to the name behind a proxy."""
    answer = server.client.request("POST" if "audio" in path else "GET", f"{server.base}{path}")
    assert answer.status_code == 404
    assert hint in answer.json()["error"]["message"]


def test_paths_below_openai_are_those_of_openai(server, sample):
    """Groq's clients ask for recordings, models and what does not exist there."""
    assert server.client.get("/openai/v1/models").json() == server.client.get("/v1/models").json()
    wav, _ = sample
    answer = server.client.post("/openai/v1/audio/transcriptions", files={"file": ("a.wav", wav)})
    assert answer.status_code == 200
    assert server.client.get("/openai/v1/nothing").status_code == 404


def test_a_trace_is_sent_back_and_logged(server):
    """W3C's `traceparent`, if it is one; the line of the request has its trace."""
    trace = 32 * "a"
    parent = f"00-{trace}-{16 * 'b'}-01"
    assert server.client.get("/v1/models", headers={"traceparent": parent}).headers["traceparent"] == parent
    assert "traceparent" not in server.client.get("/v1/models", headers={"traceparent": "00-no-1"}).headers
    assert f"trace={trace}" in server.log()


def test_a_handshake_for_an_unknown_path_is_a_404_with_a_hint(server):
    """The client's error shows the body; it would be an empty 403."""
    for path, hint in (("/realtime", "Did you mean /v1/realtime?"), ("/ws/transcribe/", "Leave out the slash")):
        with pytest.raises(InvalidStatus) as refused, connect(server.base.replace("http", "ws", 1) + path):
            pass
        assert refused.value.response.status_code == 404
        assert hint in json.loads(refused.value.response.body)["error"]["message"]


def test_a_405_names_every_method_of_the_path(server):
    """Of all its routes, and HEAD."""
    for path, methods in (("/", "GET, OPTIONS, HEAD"), ("/v1/jobs/x", "DELETE, GET, HEAD"), ("/v1/jobs", "POST")):
        answer = server.client.put(path)
        assert (answer.status_code, answer.headers["allow"]) == (405, methods)


def test_a_plain_request_for_a_socket_is_told_to_upgrade(server):
    """An address bar, or a proxy that does not pass the upgrade on."""
    for path in ("/ws/transcribe", "/v1/realtime"):
        answer = server.client.get(path)
        assert (answer.status_code, answer.headers["upgrade"]) == (426, "websocket")
        assert answer.json()["error"]["code"] == "upgrade_required"


def test_a_head_is_that_of_the_get(server):
    """For monitors and load balancers, without a body."""
    for path in ("/", "/health", "/v1/models", "/livez", "/metrics", "/docs"):
        head, whole = server.client.head(path), server.client.get(path)
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-type"] == whole.headers["content-type"]
    assert server.client.options("/").headers["allow"] == "GET, HEAD, OPTIONS"


@pytest.mark.parametrize(
    ("url", "fields"),
    [
        ("/openai/deployments/our-whisper/audio/transcriptions?api-version=2025-04-01-preview", {}),
        ("/inference", {"temperature": "0.0", "temperature_inc": "0.2", "response_format": "json"}),
    ],
)
def test_paths_of_other_servers_are_served(server, sample, url, fields):
    """Azure's, where the name of the deployment does not matter, and whisper.cpp's."""
    answer = server.client.post(url, files={"file": ("a.wav", sample[0])}, data=fields)
    assert answer.json()["text"] == sample[1]


@pytest.mark.parametrize("url", ["/v1/audio/transcriptions", "/v1/audio/subtitles", "/inference", "/v1/jobs"])
def test_a_recording_may_be_the_body(server, sample, url):
    """As OVOS sends it, with the answer's form in the query, where a field that no route has says nothing."""
    headers = {"content-type": "audio/wav"}
    query = {"response_format": "srt", "lang": "en-us"}
    answer = server.client.post(url, params=query, content=sample[0], headers=headers)
    if url == "/v1/jobs":
        job = f"{url}/{answer.json()['id']}"
        server.client.get(f"{job}/events")
        answer = server.client.get(f"{job}/result")
    assert answer.text.startswith("1\n00:00:0")
    assert all(word in answer.text for word in sample[1].split())


def test_azures_client_names_its_deployment_as_it_likes(server, sample):
    """The official client, which sends the name as the model too."""
    client = openai.AzureOpenAI(
        azure_endpoint=server.base, api_key="any", api_version="2025-04-01-preview", azure_deployment="ours"
    )
    assert client.audio.transcriptions.create(file=("a.wav", sample[0]), model="ours").text == sample[1]


def test_a_compressed_body_is_refused(server, sample):
    """By its header, before it is read as a form."""
    request = server.client.build_request("POST", "/v1/audio/transcriptions", files={"file": ("a.wav", sample[0])})
    body = gzip.compress(request.read())
    headers = {"content-type": request.headers["content-type"], "content-encoding": "gzip"}
    answer = server.client.post("/v1/audio/transcriptions", content=body, headers=headers)
    assert _error(answer)[:2] == (415, "unsupported_encoding")
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    answer = server.client.post("/v1/realtime/client_secrets", content=gzip.compress(b"{}"), headers=headers)
    assert _error(answer)[:2] == (415, "unsupported_encoding")
    assert (
        server.client.post("/v1/realtime/client_secrets", headers={"content-encoding": "Identity"}).status_code == 200
    )
