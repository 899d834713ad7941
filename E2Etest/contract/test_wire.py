"""Requests byte for byte: forms as RFC 2046 and old clients write them, bodies that are cut, and HTTP/1.0."""

import json
import re

import pytest

from E2Etest.drive.wire import END, answer, exchange, form, post

STREAM = b'--b\r\nContent-Disposition: form-data; name="stream"\r\n\r\ntrue\r\n'
CUT = (499, "request_cancelled")


def _text(found):
    assert found.status == 200, found.body
    return json.loads(found.body)["text"]


def _error(found):
    error = json.loads(found.body)["error"]
    assert error["message"]
    return found.status, error["code"]


@pytest.mark.parametrize(
    "disposition",
    [
        b"name=\"file\"; FileName*=UTF-8'en'%e2%82%ac.wav",
        b'name="file"; filename*=UTF-8\'\'%zz%ff; filename="a.wav"',
        b"name=file; filename==?utf-8?B?w6Qud2F2?=; filename*=utf-8''%C3%A4.wav",
        rb'name="file"; filename="a\"b;c=d.wav"',
        b'name="file"; filename=""',
        b'name="file"; filename="\xe4\xff\x00.wav"',
    ],
)
def test_a_file_has_any_name(server, sample, disposition):
    """Extended (urllib3 before 1.25, .NET), quoted, odd and absent names: the content decides."""
    assert _text(answer(server, post(form(sample[0], disposition)))) == sample[1]


def test_a_preamble_and_an_epilogue_are_no_parts(server, sample):
    """RFC 2046 has text before the first boundary and after the last for readers without MIME."""
    plain = form(sample[0])
    for body in (b"A message\r\nin several -- parts --b.\r\n" + plain, plain + b"The end.\r\n--b\r\n"):
        assert _text(answer(server, post(body))) == sample[1]
    # Also where the network cuts it.
    late = post(b"x" * 9_000 + b"\r\n" + plain)
    at = late.index(b"--b\r\n")
    assert _text(answer(server, late[: at + 1], late[at + 1 :])) == sample[1]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (form(b"RIFF")[: -len(END) - 3], "no closing boundary"),  # ends in the middle of a part
        (form(b"RIFF")[: -len(END)], "no closing boundary"),  # between two parts
        (form(b"RIFF")[: -len(END)] + b"--b\r\n", "no closing boundary"),  # at the begin of the next
        (b"", "no closing boundary"),
        (form(b"RIFF").replace(b"--b", b"--c"), "no closing boundary"),  # another one than in the header
        (form(b"RIFF", b'filename="a.wav"'), "name"),
        (form(b"RIFF", b'name="file"; filename="' + b"x" * 9_000 + b'"'), "header size"),
        (form(b"RIFF").replace(b"\r\n", b"\n"), "boundary"),
    ],
)
def test_a_form_that_cannot_be_parsed_says_why(server, body, reason):
    """A field that is lost must not be one that was not sent."""
    found = answer(server, post(body))
    assert _error(found) == (400, "malformed_body")
    assert reason in json.loads(found.body)["error"]["message"]


def test_a_library_warning_has_the_id_of_its_request(server):
    """The parser's own warning: what an operator finds with the id that the caller reports."""
    answer(server, post(form(b"RIFF").replace(b"\r\n", b"\n"), headers=b"X-Request-ID: caller-8\r\n"))
    lines = [line for line in server.log().splitlines() if "python_multipart" in line]
    assert [line for line in lines if "id=caller-8" in line]
    assert all(re.search(r"\bid=(req_|caller-)", line) for line in lines)


@pytest.mark.parametrize("framing", ["length", "chunked"])
@pytest.mark.parametrize("path", ["/v1/audio/transcriptions", "/v1/jobs", "/v1/realtime/client_secrets"])
def test_a_body_that_is_cut_is_said(server, sample, framing, path):
    """The client has ended its side before the length, or before the last chunk; it may still read."""
    whole = form(sample[0])
    body, how = whole[:-2_000], {"length": len(whole)}
    if framing == "chunked":
        body, how = b"%x\r\n%b" % (len(whole), body), {"headers": b"Transfer-Encoding: chunked\r\n", "length": None}
    assert _error(answer(server, post(body, path=path, **how), ends=True)) == CUT
    assert "Traceback" not in server.log()


@pytest.mark.uvicorn
def test_a_client_that_ends_its_side_behind_its_request_is_answered(server, sample):
    """At once for what takes no time; work is cancelled, since a client that has left looks the same."""
    assert answer(server, b"GET /livez HTTP/1.0\r\n\r\n", ends=True).status == 200
    assert _error(answer(server, post(form(sample[0])), ends=True)) == CUT


@pytest.mark.uvicorn
@pytest.mark.parametrize("keep_alive", [b"", b"Connection: keep-alive\r\n"])
@pytest.mark.parametrize("path", ["/v1/audio/transcriptions", "/v1/audio/transcriptions/stream"])
def test_a_stream_over_http_1_0_ends_with_its_connection(server, sample, path, keep_alive):
    """It has no chunks: the events come as they are. Every other answer has a length."""
    request = post(STREAM + form(sample[0]), path=path, version=b"1.0", headers=keep_alive)
    found = answer(server, request)
    assert "transfer-encoding" not in found.headers
    assert (found.headers["connection"], found.headers["content-type"][:17]) == ("close", "text/event-stream")
    frames = found.body.decode().split("\n\n")
    assert frames.pop() == ""
    assert all(frame.startswith(("data: ", ": ")) for frame in frames)
    assert sample[1] in found.body.decode()


@pytest.mark.uvicorn
def test_http_1_0_has_lengths(server, sample):
    """And needs no name of the server, as HAProxy's checks have none."""
    assert _text(answer(server, post(form(sample[0]), version=b"1.0"))) == sample[1]
    for line in (b"GET /health", b"GET /metrics", b"HEAD /", b"OPTIONS /", b"GET /nothing", b"GET /ws/transcribe"):
        found = answer(server, line + b" HTTP/1.0\r\n\r\n")
        assert found.headers["connection"].endswith("close")
        assert found.status == 204 or int(found.headers["content-length"]) >= len(found.body)
        assert "transfer-encoding" not in found.headers


@pytest.mark.uvicorn
def test_a_refusal_reaches_a_client_that_still_sends(server):
    """Over a connection that closes, as nginx opens them: a reset would lose the answer."""
    body = bytes(3_000_000)
    head = post(b"", version=b"1.0", media_type=b"text/plain", length=len(body))
    for part in (body[:1], body):
        found = exchange(server, head + part, *([body[1:]] if len(part) == 1 else []))
        assert found.startswith(b"HTTP/1.1 400 ")
        assert b'"unsupported_content_type"' in found
