"""Messages over a transport that keeps what is written."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr_server.engine.protocol import AlignItem, Finish, Hypothesis, Tokens, Utterance, Written
from asr_server.engine.wire import Frames, RowFinished, SubmitRow, TokensSent, frame
from asr_server.processes import messages

AUDIO = np.linspace(-1, 1, 30_001, dtype=np.float32)
UTTERANCE = Utterance(
    AUDIO,
    language="English",
    context="names: \u2603",
    draft=(1, 2),
    temperature=0.4,
    seed=7,
    session="s:1",
    last=True,
    prefix=(3,),
    stream=True,
    draft_text=Written("a", "English"),
    prefix_text=Written("b"),
    languages=("English", "French"),
)
ALIGN = AlignItem(AUDIO, "two words", "English", ((0, 5), (7, 9)))
HYPOTHESIS = Hypothesis(
    "word", "English", (5, 6), (-0.25, float("-inf")), Finish.LOOP, 13, 9, 3, 0.01, (0, 4), (b"", b"\xff")
)


def _received(data, cuts=()):
    """Return what a connection makes of these bytes, which come in pieces that end at `cuts`, and if it was aborted."""
    told, aborted = [], []
    frames = Frames(lambda message, samples: told.append((message, samples)), lambda: None)
    frames.connection_made(SimpleNamespace(abort=lambda: aborted.append(True)))
    begin = 0
    for end in (*sorted(cuts), len(data)):
        while begin < end and not aborted:
            room = frames.get_buffer(-1)
            came = min(len(room), end - begin)
            room[:came] = data[begin : begin + came]
            begin += came
            frames.buffer_updated(came)
    return told, bool(aborted)


def _fields(item):
    return item and {one.name: getattr(item, one.name) for one in dataclasses.fields(item) if one.name != "audio"}


@given(st.lists(st.integers(1, 240_000), max_size=6))
def test_messages_arrive_whole_however_the_socket_divides_them(cuts):
    """Rows with and without samples and an answer, one after the other: each field and each sample."""
    sent = [
        (SubmitRow(1, 1, 2.0, "", "", 3.0, utterance=UTTERANCE), AUDIO),
        (TokensSent(2, Tokens((1,), (-0.5,), "a")), None),
        (SubmitRow(3, 1, 2.0, "", "", 3.0, align=ALIGN), AUDIO),
        (RowFinished(4, 1, 2, 0, HYPOTHESIS), None),
    ]
    data = b"".join(bytes(part) for message, samples in sent for part in frame(message, samples))
    told, _ = _received(data, [cut for cut in cuts if cut < len(data)])
    assert (told[1][0], told[3][0]) == (sent[1][0], sent[3][0])
    for (message, samples), (wanted, _) in zip(told[::2], sent[::2], strict=True):
        assert (message.number, message.queued_s) == (wanted.number, wanted.queued_s)
        assert _fields(message.utterance) == _fields(wanted.utterance)
        assert _fields(message.align) == _fields(wanted.align)
        assert np.array_equal(samples, AUDIO)
        assert samples.flags.aligned
        assert samples.flags.writeable  # as torch wants it
    assert told[3][0].hypothesis.finish is Finish.LOOP


def _framed(text, sample_bytes=0):
    return messages.HEADER.pack(len(text), sample_bytes) + text


@pytest.mark.parametrize(
    "data",
    [
        _framed(b'{"kind": "Other"}'),
        _framed(b'{"kind": "CancelRow", "number": 1}', messages.MAX_DATA_BYTES + 1),
        messages.HEADER.pack(messages.MAX_JSON_BYTES + 1, 0),
        _framed(b'{"kind": "CancelRow", "number": "x"}'),
        _framed(b'{"kind": "CancelRow", "number": 1, "more": 2}'),
        _framed(b'{"kind": "CancelRow", "number": 1'),
        _framed(b'{"kind": "CancelRow", "number": 1}', 3) + b"abc",  # a part of a sample
    ],
)
def test_what_is_no_message_ends_the_connection(data):
    """No memory is taken for a length that no message has."""
    assert _received(data) == ([], True)
