"""The client of the realtime tests: OpenAI's client, every frame checked against its own types."""

from __future__ import annotations

import base64
import json
from contextlib import contextmanager

import numpy as np
import pydantic
import pytest
import soxr
from openai.types.realtime import RealtimeServerEvent
from websockets.exceptions import ConnectionClosed

from E2Etest.drive import recordings

RATE = 24_000
FRAME = pydantic.TypeAdapter(RealtimeServerEvent)
COMPLETED = "conversation.item.input_audio_transcription.completed"
FAILED = "conversation.item.input_audio_transcription.failed"
DELTA = "conversation.item.input_audio_transcription.delta"
COMMITTED = "input_audio_buffer.committed"
STARTED, STOPPED = "input_audio_buffer.speech_started", "input_audio_buffer.speech_stopped"
ADDED, DONE = "conversation.item.added", "conversation.item.done"


def pcm24(pcm: np.ndarray) -> bytes:
    """int16 at 16 kHz as bytes at 24 kHz."""
    return soxr.resample(pcm, 16_000, RATE).astype("<i2").tobytes()


def speech(seconds_behind: float = 0.0) -> bytes:
    """The bundled recording and silence, at 24 kHz."""
    return pcm24(recordings.samples()) + bytes(2 * int(RATE * seconds_behind))


def encoded(audio: bytes) -> str:
    """Return audio as the protocol carries it."""
    return base64.b64encode(audio).decode()


class Talk:
    """A connection whose frames are checked and kept."""

    def __init__(self, connection) -> None:
        self.connection = connection
        self.events: list = []

    def next(self):
        """The next event."""
        self.events.append(FRAME.validate_python(json.loads(self.connection.recv_bytes())))
        return self.events[-1]

    def until(self, kind: str, times: int = 1) -> list:
        """All events up to the one of this type, or the last of so many."""
        seen = []
        while sum(event.type == kind for event in seen) < times:
            seen.append(self.next())
        return seen

    def only(self, kind: str):
        """The next event, which has this type."""
        event = self.next()
        assert event.type == kind, event
        return event

    def update(self, include=None, **heard):
        """A session update of keys of `audio.input`, and its answer."""
        session = {"type": "transcription", "audio": {"input": heard}}
        if include is not None:
            session["include"] = include
        self.connection.session.update(session=session)
        return self.only("session.updated").session

    def say(self, audio: bytes, size: int = 4_800) -> None:
        """Append in pieces of so many bytes."""
        for at in range(0, len(audio), size):
            self.connection.input_audio_buffer.append(audio=encoded(audio[at : at + size]))

    @property
    def close_code(self) -> int | None:
        """The close code of a connection that the server has closed."""
        with pytest.raises(ConnectionClosed) as closed:
            self.connection.recv_bytes()
        return closed.value.rcvd and closed.value.rcvd.code

    def commit(self, event_id: str | None = None) -> None:
        """End the turn."""
        self.connection.input_audio_buffer.commit(**({"event_id": event_id} if event_id else {}))


@contextmanager
def open_session(server, *, hello: str = "session.created", **options):
    """An open connection behind its first event, kept as `talk.hello`."""
    options.setdefault("extra_query", {"intent": "transcription"})
    with server.openai().realtime.connect(**options) as connection:
        talk = Talk(connection)
        talk.hello = talk.only(hello)
        yield talk


def kinds(events) -> list[str]:
    """Their types, deltas left out."""
    return [event.type for event in events if event.type != DELTA]


def texts(events) -> dict[str, tuple[str, str]]:
    """Return for each item the deltas joined, and the transcript."""
    said = {e.item_id: e.transcript for e in events if e.type == COMPLETED}
    return {
        item: ("".join(e.delta for e in events if e.type == DELTA and e.item_id == item), said[item]) for item in said
    }
