"""The file client against servers that fail; what a real server says is tested in E2Etest/cli."""

import io
import os

import pytest

from asr_server.client.conftest import answering
from asr_server.client.files import (
    Duration,
    FileClient,
    FileError,
    ResponseFormat,
    ServerUnreachable,
    Span,
    SubtitleRequest,
    TranscriptionRequest,
)

_SPAN = b'data: {"text": "on", "language": "English", "is_final": false, "start": 0.5, "end": 1.5}\n\n'
_LATE = b'data: {"error": {"message": "Late.", "type": "x", "param": null, "code": "deadline_exceeded"}}\n\n'
_REFUSED = b'{"error": {"message": "Full.", "type": "x", "param": null, "code": "rate_limit_exceeded"}}'


@pytest.mark.parametrize(
    ("body", "status", "headers", "code"),
    [
        (_REFUSED, 429, {"Retry_After": "7"}, "rate_limit_exceeded"),
        # Whatever stands at the address.
        *((body, 502, {}, "http_502") for body in (b"<html>", b"[]", b'{"error": "no"}', b'{"error": null}')),
        # The body of a redirection is no transcript, and the key must not be sent to another address.
        (b"moved", 307, {"Location": "http://127.0.0.1:1/"}, "http_307"),
    ],
)
def test_a_refusal_is_an_error_with_code_message_and_waiting_time(body, status, headers, code):
    """The envelope and the header have them; an error of another server is reported by its status."""
    with answering(body, status, **headers) as (base, _), FileClient(base) as client, pytest.raises(FileError) as error:
        client.transcribe(io.BytesIO(b"RIFF"))
    assert error.value.code == code
    assert ("Full." if body == _REFUSED else str(status)) in error.value.message
    assert error.value.retry_after_s == (7 if headers.get("Retry_After") else None)


@pytest.mark.parametrize(("rest", "code"), [(b"", "connection_lost"), (_LATE, "deadline_exceeded")])
def test_an_answer_that_ends_early_is_an_error_after_what_was_heard(rest, code):
    """The length and the spans come first. The last event is missing, or has the error: the status was 200."""
    with answering(b'data: {"duration": 2.0}\n\n' + _SPAN + rest) as (base, _), FileClient(base) as client:
        spans = client.spans(io.BytesIO(b"RIFF"))
        assert [next(spans), next(spans)] == [Duration(2.0), Span("on", "English", 0.5, 1.5, whole=False)]
        with pytest.raises(FileError) as error:
            next(spans)
    assert error.value.code == code


@pytest.mark.parametrize(("key", "header"), [("sk-1", "Bearer sk-1"), ("", None)])
def test_a_pipe_is_sent_to_its_end_with_the_fields_and_the_key(key, header):
    """The pipe has a descriptor and no length. The fields are the form's text fields, next to the file."""
    read, write = os.pipe()
    os.write(write, b"RIFF and more")
    os.close(write)
    request = TranscriptionRequest(language="English", response_format=ResponseFormat.SRT)
    with os.fdopen(read, "rb") as pipe, answering(b"on\n") as (base, seen), FileClient(base, key=key) as client:
        assert client.transcribe(pipe, request) == "on\n"
    assert b"RIFF and more" in seen[0]
    text = seen[0].decode()
    assert all(f'name="{name}"' in text for name in ("language", "model", "response_format", "file"))
    assert seen.headers[0].get("Authorization") == header


@pytest.mark.parametrize("address", ["http://127.0.0.1:1", "ftp://127.0.0.1", "nothing"])
def test_where_nothing_answers_it_is_said(address):
    """A port that is closed, or an address of no kind that can be spoken to."""
    with FileClient(address) as client, pytest.raises(ServerUnreachable):
        client.transcribe(io.BytesIO(b"RIFF"))


def test_what_the_headers_say_of_a_result_is_kept():
    """The source of the times, the number of untranslated lines, the error of a translation."""
    headers = {"X_Subtitle_Timing": "mixed", "X_Untranslated": "3", "X_Translation_Error": "translation_failed"}
    with answering(b"1\n", **headers) as (base, _), FileClient(base) as client:
        result = client.process(io.BytesIO(b"RIFF"), SubtitleRequest())
    assert (result.content, result.time_source, result.untranslated) == (b"1\n", "mixed", 3)
    assert result.translation_error == "translation_failed"
