"""Bad input: each with its code, none a 5xx, and the server goes on."""

import gzip
import json

import numpy as np
import openai
import pytest
from websockets.exceptions import InvalidStatus

from E2Etest.drive import recordings
from E2Etest.drive.process import refusal
from E2Etest.drive.session import connected

pytestmark = pytest.mark.demo_server

WHOLE, OWN = "/v1/audio/transcriptions", "/v1/audio/transcriptions/stream"
SUBTITLES = "/v1/audio/subtitles"
SAMPLE = recordings.sample()[0]
WORDS = b"this is plain text and no recording at all, whatever its name says\n" * 20
STREAM = {"stream": "true"}
# Route, recording, fields; status, code and the field at fault.
REFUSED = [
    # What is no recording, or too much of one: MAX_AUDIO_S is 120 s, whatever the header says, and a small file can
    # hold much audio. MAX_UPLOAD_MB is 4.
    (WHOLE, b"", {}, (400, "empty_file", "file")),
    *((path, WORDS, STREAM, (400, "invalid_audio", "file")) for path in (WHOLE, OWN)),
    (WHOLE, WORDS, {}, (400, "invalid_audio", "file")),
    (WHOLE, recordings.wav(np.zeros(0, np.int16)), {}, (400, "audio_too_short", "file")),
    (WHOLE, b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n", {}, (400, "invalid_audio", "file")),
    (WHOLE, recordings.wav(np.zeros(130 * 8000, np.int16), rate=8000), {}, (400, "audio_too_long", "file")),
    (WHOLE, bytes(5 * 1024 * 1024), {}, (413, "file_too_large", "file")),
    # Wrong fields, before any audio is decoded, and before the first event of a stream.
    *(
        (path, SAMPLE, form | wrong, expected)
        for path, form in ((WHOLE, {}), (WHOLE, STREAM), (OWN, {}))
        for wrong, expected in (
            ({"model": "nobody"}, (404, "model_not_found", "model")),
            ({"language": "is"}, (400, "unsupported_language", "language")),
        )
    ),
    (WHOLE, SAMPLE, {"language": "tlh!"}, (400, "invalid_language_format", "language")),
    (WHOLE, SAMPLE, {"temperature": "warm"}, (400, "invalid_value", "temperature")),
    (WHOLE, SAMPLE, {f"field{n}": "x" * 20_000 for n in range(14)}, (400, "malformed_body", None)),
    (SUBTITLES, SAMPLE, {"format": "sub"}, (400, "invalid_value", "format")),
    (SUBTITLES, SAMPLE, {"mode": "best"}, (400, "invalid_value", "mode")),
    (SUBTITLES, SAMPLE, {"max_line_chars": "1"}, (400, "invalid_value", "max_line_chars")),
    (SUBTITLES, SAMPLE, {"max_lines": "0"}, (400, "invalid_value", "max_lines")),
    (SUBTITLES, SAMPLE, {"model": "nobody"}, (404, "model_not_found", "model")),
    # Our own events have no log-probabilities, subtitles and scores, which would be left out without a word.
    (OWN, SAMPLE, {"include[]": "logprobs"}, (400, "unsupported_value", "include")),
    *(
        (OWN, SAMPLE, {"response_format": name}, (400, "unsupported_value", "response_format"))
        for name in ("srt", "vtt", "verbose_json", "diarized_json", "docx")
    ),
    (WHOLE, SAMPLE, STREAM | {"response_format": "docx"}, (400, "unsupported_value", "stream")),
]


@pytest.mark.parametrize(("path", "audio", "fields", "expected"), REFUSED)
def test_what_is_wrong_with_a_recording_or_a_field_is_named(server, path, audio, fields, expected):
    assert refusal(server.post(path, audio, **fields)) == expected


@pytest.mark.parametrize("fields", [1, 4])
def test_more_text_than_a_form_may_have(server, fields):
    """In one field or in all together."""
    answer = server.transcribe(SAMPLE, **{f"nonsense{n}": "a" * (262_144 // fields + 1) for n in range(fields)})
    assert refusal(answer)[:2] == (400, "malformed_body")
    assert "256 KiB" in answer.json()["error"]["message"]


def test_missing_and_misplaced_files(server):
    """No file, or text where the file should be."""
    missing = (400, "missing_required_parameter", "file")
    assert refusal(server.client.post(WHOLE, files={"other": b"x"}, data={"model": "demo"})) == missing
    text = server.client.post(WHOLE, files={"model": (None, "demo"), "file": (None, "text")})
    assert refusal(text) == missing
    assert "file=@recording.wav" in text.json()["error"]["message"]


def test_bodies_that_are_no_form(server):
    """JSON, nothing, a form without boundary, a form that ends in the middle."""
    unsupported = (400, "unsupported_content_type", None)
    assert refusal(server.client.post(WHOLE, json={"file": "x"})) == unsupported
    assert refusal(server.client.post(WHOLE)) == unsupported
    form = "multipart/form-data; boundary=b"
    broken = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nabc'
    for body, kind in ((b"x", "multipart/form-data"), (broken, form), (b"junk" * 100, form)):
        answer = server.client.post(WHOLE, content=body, headers={"content-type": kind})
        assert refusal(answer)[:2] == (400, "malformed_body")


def test_an_upload_over_the_cap_without_a_length(server):
    """A chunked body is refused while it is read, and the answer arrives."""

    def body():
        yield b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
        for _ in range(64):
            yield bytes(256 * 1024)

    answer = server.client.post(WHOLE, content=body(), headers={"content-type": "multipart/form-data; boundary=b"})
    assert refusal(answer) == (413, "file_too_large", "file")


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
        ("/v1/nothing", ""),
        ("/openai/v1/nothing", ""),
    ],
)
def test_a_wrong_base_url_is_recognized(server, path, hint):
    """Clients join it with their paths in different ways; nobody is redirected to the name behind a proxy."""
    answer = server.client.request("POST" if "audio" in path else "GET", f"{server.base}{path}")
    assert refusal(answer) == (404, None, None)
    assert hint in answer.json()["error"]["message"]


def test_paths_below_openai_are_those_of_openai(server, sample):
    """Groq's clients ask for recordings and models there."""
    assert server.client.get("/openai/v1/models").json() == server.client.get("/v1/models").json()
    assert server.post(f"/openai{WHOLE}", sample[0]).json()["text"] == sample[1]


def test_a_trace_is_sent_back_and_logged(server):
    """W3C's `traceparent`, if it is one; the line of the request has its trace."""
    trace = 32 * "a"
    parent = f"00-{trace}-{16 * 'b'}-01"
    assert server.client.get("/v1/models", headers={"traceparent": parent}).headers["traceparent"] == parent
    assert "traceparent" not in server.client.get("/v1/models", headers={"traceparent": "00-no-1"}).headers
    assert f"trace={trace}" in server.log()


@pytest.mark.parametrize(
    ("path", "hint"), [("/realtime", "Did you mean /v1/realtime?"), ("/ws/transcribe/", "Leave out the slash")]
)
def test_a_handshake_for_an_unknown_path_is_a_404_with_a_hint(server, path, hint):
    """The client's error shows the body; it would be an empty 403."""
    with pytest.raises(InvalidStatus) as refused, connected(server, path):
        pass
    assert refused.value.response.status_code == 404
    assert hint in json.loads(refused.value.response.body)["error"]["message"]


@pytest.mark.parametrize(
    ("path", "methods"), [("/", "GET, OPTIONS, HEAD"), ("/v1/jobs/x", "DELETE, GET, HEAD"), ("/v1/jobs", "POST")]
)
def test_a_405_names_every_method_of_the_path(server, path, methods):
    """Of all its routes, and HEAD."""
    answer = server.client.put(path)
    assert (refusal(answer)[:2], answer.headers["allow"]) == ((405, "method_not_allowed"), methods)


@pytest.mark.parametrize("path", ["/ws/transcribe", "/v1/realtime"])
def test_a_plain_request_for_a_socket_is_told_to_upgrade(server, path):
    """An address bar, or a proxy that does not pass the upgrade on."""
    answer = server.client.get(path)
    assert (refusal(answer)[:2], answer.headers["upgrade"]) == ((426, "upgrade_required"), "websocket")


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
    assert server.post(url, sample[0], **fields).json()["text"] == sample[1]


@pytest.mark.parametrize("url", [WHOLE, SUBTITLES, "/inference", "/v1/jobs"])
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
    form = server.client.build_request("POST", WHOLE, files={"file": ("a.wav", sample[0])})
    secrets = "/v1/realtime/client_secrets"
    for path, kind, body in ((WHOLE, form.headers["content-type"], form.read()), (secrets, "application/json", b"{}")):
        headers = {"content-type": kind, "content-encoding": "gzip"}
        answer = server.client.post(path, content=gzip.compress(body), headers=headers)
        assert refusal(answer)[:2] == (415, "unsupported_encoding")
    assert server.client.post(secrets, headers={"content-encoding": "Identity"}).status_code == 200
