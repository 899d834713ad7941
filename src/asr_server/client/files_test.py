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
_WHOLE = b'data: {"text": "on", "language": "English", "is_final": true, "start": 0, "end": 2.0}\n\n'


def test_a_refusal_keeps_code_message_and_waiting_time():
    """The envelope and the header have them."""
    body = b'{"error": {"message": "Full.", "type": "x", "param": null, "code": "rate_limit_exceeded"}}'
    with (
        answering(body, 429, Retry_After="7") as (base, _),
        FileClient(base) as client,
        pytest.raises(FileError) as refusal,
    ):
        client.transcribe(io.BytesIO(b"RIFF"))
    assert (refusal.value.code, refusal.value.message) == ("rate_limit_exceeded", "Full.")
    assert refusal.value.retry_after_s == 7


def test_an_error_of_another_server_is_reported_by_its_status():
    """Whatever stands at the address."""
    for body in [b"<html>", b"{}", b"[]", b'{"error": "no"}', b'{"error": null}']:
        with (
            answering(body, 502) as (base, _),
            FileClient(base) as client,
            pytest.raises(FileError, match="502") as error,
        ):
            client.transcribe(io.BytesIO(b"RIFF"))
        assert error.value.code == "http_502"


def test_an_answer_that_breaks_off_is_an_error():
    """An answer whose last event is missing is one, also where what was sent is whole."""
    with answering(_SPAN) as (base, _), FileClient(base) as client:
        spans = client.spans(io.BytesIO(b"RIFF"))
        assert next(spans).text == "on"
        with pytest.raises(FileError) as error:
            next(spans)
    assert error.value.code == "connection_lost"


def test_an_error_in_the_middle_comes_after_what_was_heard():
    """The status was 200; the event says what happened."""
    error_event = b'data: {"error": {"message": "Late.", "type": "x", "param": null, "code": "deadline_exceeded"}}\n\n'
    with answering(_SPAN + error_event) as (base, _), FileClient(base) as client:
        spans = client.spans(io.BytesIO(b"RIFF"))
        assert next(spans).text == "on"
        with pytest.raises(FileError, match="Late") as error:
            next(spans)
    assert error.value.code == "deadline_exceeded"


def test_the_length_of_the_recording_comes_first_where_the_server_says_it():
    """An event of its own; a server without it is no error."""
    body = b'data: {"duration": 2.0}\n\n' + _SPAN + _WHOLE + b'data: {"done": true}\n\n'
    with answering(body) as (base, _), FileClient(base) as client:
        items = list(client.spans(io.BytesIO(b"RIFF")))
    assert items == [
        Duration(2.0),
        Span("on", "English", 0.5, 1.5, whole=False),
        Span("on", "English", 0, 2.0, whole=True),
    ]


def test_a_pipe_is_sent_to_its_end():
    """The pipe has a descriptor and no length."""
    read, write = os.pipe()
    os.write(write, b"RIFF and more")
    os.close(write)
    with os.fdopen(read, "rb") as pipe, answering(b"on\n") as (base, seen), FileClient(base) as client:
        assert client.transcribe(pipe) == "on\n"
    assert b"RIFF and more" in seen[0]


def test_the_fields_of_the_request_are_sent():
    """The fields are the form's text fields, next to the file."""
    request = TranscriptionRequest(language="English", response_format=ResponseFormat.SRT)
    with answering(b"x") as (base, seen), FileClient(base) as client:
        client.transcribe(io.BytesIO(b"RIFF"), request)
    text = seen[0].decode()
    assert all(f'name="{name}"' in text for name in ("language", "model", "response_format", "file"))


@pytest.mark.parametrize("address", ["http://127.0.0.1:1", "ftp://127.0.0.1", "nothing"])
def test_where_nothing_answers_it_is_said(address):
    """A port that is closed, or an address of no kind that can be spoken to."""
    with FileClient(address) as client, pytest.raises(ServerUnreachable):
        client.transcribe(io.BytesIO(b"RIFF"))


@pytest.mark.parametrize(("key", "header"), [("sk-1", "Bearer sk-1"), ("", None)])
def test_the_key_is_a_header_of_every_request(key, header):
    """The header is left out without a key."""
    with answering(b"x") as (base, seen), FileClient(base, key=key) as client:
        client.transcribe(io.BytesIO(b"RIFF"))
    assert seen.headers[0].get("Authorization") == header


def test_a_redirection_is_no_answer():
    """The redirection's body is not a transcript, and the key must not be sent to another address."""
    with (
        answering(b"moved", 307, Location="http://127.0.0.1:1/") as (base, _),
        FileClient(base) as client,
        pytest.raises(FileError) as error,
    ):
        client.transcribe(io.BytesIO(b"RIFF"))
    assert error.value.code == "http_307"


def test_what_the_headers_say_of_a_result_is_kept():
    """The source of the times, the number of untranslated lines, the error of a translation."""
    headers = {"X_Subtitle_Timing": "mixed", "X_Untranslated": "3", "X_Translation_Error": "translation_failed"}
    with answering(b"1\n", **headers) as (base, _), FileClient(base) as client:
        result = client.process(io.BytesIO(b"RIFF"), SubtitleRequest())
    assert (result.content, result.time_source, result.untranslated) == (b"1\n", "mixed", 3)
    assert result.translation_error == "translation_failed"
