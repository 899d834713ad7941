"""Refusals, and the errors as which they arrive: items 4, 10, 13 and 18."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import openai
from world import MODEL, WORDS, case, check_refusal, client, create, failure, recording

_TEXT = b"this is plain text and no recording, whatever its name says\n" * 20
_FORM = {"headers": {"Content-Type": "multipart/form-data"}}
_ROUTE = "/audio/transcriptions"


def _file(name: str) -> Callable[[], object]:
    return lambda: create(file=recording(name))


def _fields(**fields: Any) -> Callable[[], object]:
    return lambda: create(**fields)


def _post(path: str, **request: Any) -> Callable[[], object]:
    return lambda: client().post(path, cast_to=object, **request)


_CALLS: dict[tuple[int, str], Callable[[], object]] = {
    # Parameters since 2.6; before, the same bytes by extra_body.
    (4, "known-alone"): _fields(known_speaker_names=["agent"], known_speaker_references=["data:;base64,AAAA"]),
    (4, "no-data-url"): _fields(
        response_format="diarized_json",
        known_speaker_names=["agent"],
        known_speaker_references=["https://example.com/agent.wav"],
    ),
    (10, "stream-of-text"): _fields(file=("a.mp3", _TEXT), stream=True),
    (13, "unknown-model"): _fields(model="nobody"),
    (13, "no-file"): _post(_ROUTE, body={"model": MODEL}, files=[("other", b"x")], options=_FORM),
    (13, "file-as-text"): _post(_ROUTE, body={"model": MODEL, "file": "text"}, files={}, options=_FORM),
    (13, "not-audio"): _fields(file=bytes(5000)),
    (13, "text-as-mp3"): _fields(file=("a.mp3", _TEXT, "audio/mpeg")),
    (13, "empty-file"): _fields(file=("a.wav", b"")),
    (13, "header-only"): _file("header-only"),
    (13, "too-short"): _file("too-short"),
    (13, "too-long"): _file("too-long"),
    (13, "too-large"): _file("too-large"),
    (13, "language-format"): _fields(language="tlh!"),
    (13, "language-unknown"): _fields(language="is"),
    (13, "format-unknown"): _fields(response_format="rtf"),
    (13, "granularity-alone"): _fields(timestamp_granularities=["word"]),
    (13, "granularity-unknown"): _fields(timestamp_granularities=["syllable"], response_format="verbose_json"),
    (13, "include-alone"): _fields(include=["logprobs"], response_format="text"),
    (13, "temperature"): _fields(temperature=7),
    (13, "json-body"): _post(_ROUTE, body={"model": MODEL, "file": "x"}),
    (13, "unknown-route"): _post("/nothing", body={}),
    (13, "wrong-method"): lambda: client().get(_ROUTE, cast_to=object),
    (18, "models-unknown"): lambda: client().models.retrieve("nope"),
}


def _refusal(name: str, call: Callable[[], object]) -> Callable[[], None]:
    return lambda: check_refusal(name, failure(call))


for (_item, _name), _call in _CALLS.items():
    case(_item, _name)(_refusal(_name, _call))


@case(13, "request-id")
def request_id():
    assert create()._request_id.startswith("req_")  # noqa: SLF001
    assert client().models.list()._request_id.startswith("req_")  # noqa: SLF001


@case(13, "reply-headers")
def reply_headers():
    headers = client().models.with_raw_response.list().headers
    assert headers["openai-version"] == "2020-10-01"
    assert int(headers["openai-processing-ms"]) >= 0


@case(13, "keyless")
def keyless():
    assert create(client(api_key="sk-whatever")).text == WORDS
    assert create(extra_headers={"Authorization": openai.Omit()}).text == WORDS
