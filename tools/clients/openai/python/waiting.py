"""Retries, time limits of the server, idle connections: cases that mostly wait, beside the others. Items 13 to 15."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import openai
from world import WORDS, case, check_freed, check_refusal, client, create, failure, name_request, outcomes, recording

IDLE_S = 10.0


@contextmanager
def _full() -> Iterator[Any]:
    """The limited server at work on more than it takes beside it; afterwards it has room again."""
    stream = create(client("limited"), recording("held"), stream=True)
    try:
        next(stream)
        yield stream
    finally:
        stream.close()
        check_freed("limited", time.monotonic())


def _refused(server: str, file: str, retries: int) -> tuple[openai.APIStatusError, list[str]]:
    """The error, and how each attempt ended as the server saw it."""
    name, headers = name_request()
    error = failure(lambda: create(client(server, max_retries=retries), recording(file), extra_headers=headers))
    assert isinstance(error, openai.APIStatusError), error
    return error, outcomes(server, name)


@functools.cache
def _late() -> tuple[openai.APIStatusError, list[str]]:
    return _refused("limited", "held", openai.DEFAULT_MAX_RETRIES)


@functools.cache
def _absent() -> tuple[openai.APIStatusError, list[str]]:
    return _refused("absent", "sample", 1)


@case(13, "busy", aside="limited")
def busy():
    with _full():
        # After the time that the refusal names there would be room.
        check_refusal("busy", _refused("limited", "sample", 0)[0])


@case(13, "deadline", aside="limited")
def deadline():
    check_refusal("deadline", _late()[0])


@case(13, "model-absent", aside="absent")
def model_absent():
    check_refusal("model-absent", _absent()[0])


@case(14, "retry-to-success", aside="limited")
def retry_to_success():
    name, headers = name_request()
    with _full() as stream:
        # There is room as soon as the first attempt was refused.
        threading.Thread(target=lambda: (outcomes("limited", name), stream.close())).start()
        answer = create(client("limited", max_retries=2), recording("short"), extra_headers=headers)
    assert answer.text
    ends = outcomes("limited", name, 2)
    assert (ends[0], ends[-1]) == ("rate_limit_exceeded", "ok")


@case(14, "retry-503", aside="absent")
def retry_503():
    error, ends = _absent()
    assert 1 <= int(error.response.headers["retry-after"]) <= 60
    assert ends == ["model_unavailable"] * 2


@case(14, "no-retry-400")
def no_retry_400():
    assert _refused("main", "header-only", 2)[1] == ["audio_too_short"]


@case(14, "no-retry-504", aside="limited")
def no_retry_504():
    error, ends = _late()
    assert error.response.headers["x-should-retry"] == "false"
    assert ends == ["deadline_exceeded"]


@case(15, "idle", aside="idle")
def idle():
    at = client()
    assert create(at).text == WORDS
    time.sleep(IDLE_S)
    assert create(at).text == WORDS
