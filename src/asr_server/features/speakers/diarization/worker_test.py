"""Requests and answers without a process. Who speaks is in the samples; see client_test.py for the confined process."""

import io

from asr_server.core.transcript import MAX_SPEAKERS
from asr_server.features.speakers.diarization import wire
from asr_server.features.speakers.diarization import worker as speakers_worker
from asr_server.features.speakers.diarization.conftest import NumberedVoices, numbered
from asr_server.features.speakers.diarization.turns import Turn
from asr_server.processes import messages, sandbox


def answers(monkeypatch, requests):
    monkeypatch.setattr(sandbox, "limit_cpu_from_now", lambda cpu_s: None)  # it would be a limit of the tests
    sent = b"".join(
        messages.packed({**request, "dropped": []}, *(block.tobytes() for block in samples))
        for request, *samples in requests
    )
    received = io.BytesIO()
    speakers_worker.serve(io.BytesIO(sent), received, NumberedVoices().models)
    received.seek(0)
    return list(iter(lambda: messages.read(received.read), None))


def recording(number, *blocks, live=False):
    push = {"action": "push", "stream": number}
    return [({**push, "action": "start", "live": live},), *((push, block) for block in blocks)]


FINISH = {"action": "finish", "stream": 1, "at_least": 1, "at_most": MAX_SPEAKERS}


def test_recordings_and_sessions_are_kept_apart(monkeypatch):
    """Requests of several come in any order. A session without a new voice differs from one without voices. There are
    as many voices as the caller says."""
    one, two = recording(1, numbered((1, 6))), recording(2, numbered((2, 6), (3, 6)))
    mixed = [request for pair in zip(one, two, strict=True) for request in pair]
    same = recording(4, numbered((2, 6), (3, 6)))
    live = recording(3, numbered((4, 3)), numbered((4, 2)), numbered((4, 0.5)), live=True)
    ends = [(FINISH,), ({**FINISH, "stream": 2},), ({**FINISH, "stream": 4, "at_most": 1},)]
    *_, first, second, third, whole, other, single = answers(monkeypatch, [*mixed, *same, *live, *ends])
    assert len(wire.voices(single)) == 1
    assert wire.turns(first) == (Turn(0, 0, 2500),)
    told = list(map(wire.voices, (first, second, third)))
    assert (told[0], list(told[1]), told[2]) == (None, [0], None)
    assert [[voice[:10].argmax() for voice in wire.voices(each).values()] for each in (whole, other)] == [[1], [2, 3]]


def test_the_turns_of_the_longest_recording_fit():
    """Two hours in which the speaker changes 30 times a second: of that, as much as a hundredth of the limit takes."""
    turns = tuple(Turn(MAX_SPEAKERS - 1, 7_000_000 + place, 7_000_001) for place in range(2_160))
    assert len(wire.answer(turns, {})) <= messages.MAX_JSON_BYTES / 100
