"""Talks to a bridge as Home Assistant does: the wyoming package's client, and the order of events that it sends."""

from __future__ import annotations

from itertools import groupby

from wyoming.asr import Transcribe, Transcript, TranscriptChunk, TranscriptStop
from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.client import AsyncTcpClient
from wyoming.error import Error
from wyoming.event import Event, Eventable

HOST = "127.0.0.1"
CHUNK_MS = 64
TIMEOUT_S = 90
SPEECH_SHAPE = (24_000, 2, 1)


def connected(port: int) -> AsyncTcpClient:
    """A client, not yet connected."""
    return AsyncTcpClient(HOST, port, connect_timeout=TIMEOUT_S, read_timeout=TIMEOUT_S)


async def speak(client, pcm: bytes, *, rate=16_000, width=2, channels=1, **asked) -> None:
    """A whole utterance."""
    shape = {"rate": rate, "width": width, "channels": channels}
    await client.write_event(Transcribe(**asked).event())
    await client.write_event(AudioStart(**shape).event())
    size = rate * CHUNK_MS // 1000 * width * channels
    for at in range(0, len(pcm), size):
        await client.write_event(AudioChunk(**shape, audio=pcm[at : at + size]).event())
    await client.write_event(AudioStop().event())


async def answer(client) -> list[Event]:
    """All events up to the one that ends the answer: transcript-stop, an error, or the end of the connection."""
    events: list[Event] = []
    while (event := await client.read_event()) is not None:
        events.append(event)
        if TranscriptStop.is_type(event.type) or Error.is_type(event.type):
            break
    return events


async def heard(port: int, pcm: bytes, **asked) -> Transcript:
    """The transcript of one utterance on a connection of its own; the chunks before it are its text."""
    async with connected(port) as client:
        await speak(client, pcm, **asked)
        events = await answer(client)
    chunks = [TranscriptChunk.from_event(e).text for e in events if TranscriptChunk.is_type(e.type)]
    kinds = [e.type for e in events if not TranscriptChunk.is_type(e.type)]
    assert kinds == ["transcript-start", "transcript", "transcript-stop"], events
    found = Transcript.from_event(events[-2])
    assert "".join(chunks) == found.text
    return found


async def refused(port: int, pcm: bytes, **asked) -> Error:
    """The error event of an utterance; the connection ends behind it."""
    async with connected(port) as client:
        await speak(client, pcm, **asked)
        events = await answer(client)
        assert await client.read_event() is None
    (error,) = events
    return Error.from_event(error)


async def spoken(client, *asked: Eventable, last: str = "audio-stop") -> tuple[list[str], bytes]:
    """The types of the events that answer, up to the one of the type `last` and without repeated chunks, and the
    samples."""
    for event in asked:
        await client.write_event(event.event())
    kinds: list[str] = []
    pcm = b""
    while not kinds or kinds[-1] != last:
        event = await client.read_event()
        assert event is not None, kinds
        if AudioChunk.is_type(event.type):
            chunk = AudioChunk.from_event(event)
            assert (chunk.rate, chunk.width, chunk.channels) == SPEECH_SHAPE
            pcm += chunk.audio
        kinds.append(event.type)
    return [kind for kind, _ in groupby(kinds)], pcm
