"""Requests and answers without a process. Who speaks is in the samples; see client_test.py for the confined process."""

import io

import numpy as np
import pytest

from asr_server.core.transcript import MAX_SPEAKERS
from asr_server.features.speakers.diarization import worker as speakers_worker
from asr_server.features.speakers.diarization.conftest import NumberedVoices, numbered
from asr_server.processes import messages, sandbox


@pytest.fixture(autouse=True)
def no_cpu_limit(monkeypatch):
    """Leave the limit out: it would be that of the tests."""
    monkeypatch.setattr(sandbox, "limit_cpu_from_now", lambda cpu_s: None)


def answers(requests, models=None):
    """The content of the answer to each request, which is its content and perhaps samples."""
    sent = b"".join(
        messages.packed({**request, "dropped": []}, *(block.tobytes() for block in samples))
        for request, *samples in requests
    )
    received = io.BytesIO()
    speakers_worker.serve(io.BytesIO(sent), received, models or NumberedVoices().models)
    received.seek(0)
    found = []
    while answer := messages.read(received.read):
        found.append(answer[0])
    return found


def recording(number, *blocks, live=False):
    start, push = ({"action": action, "stream": number} for action in ("start", "push"))
    return [({**start, "live": live},), *((push, block) for block in blocks)]


FINISH = {"action": "finish", "stream": 1, "at_least": 1, "at_most": MAX_SPEAKERS}


def test_recordings_and_sessions_are_kept_apart():
    """Requests of several come in any order."""
    one, two = recording(1, numbered((1, 6))), recording(2, numbered((2, 6), (3, 6)))
    mixed = [request for pair in zip(one, two, strict=True) for request in pair]
    found = answers([*mixed, *recording(3, numbered((4, 3)), live=True), (FINISH,), ({**FINISH, "stream": 2},)])
    assert [len(answer["voices"]) for answer in found[-2:]] == [1, 2]
    assert found[-3]["turns"] == [[0, 0, 2500]]


@pytest.mark.parametrize("action", ["push", "finish"])
def test_what_was_never_begun_is_unknown(action):
    assert answers([({"action": action, "stream": 5}, np.zeros(10, np.float32))]) == [{"error": "unknown"}]
