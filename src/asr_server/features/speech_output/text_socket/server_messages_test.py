"""What `WS /ws/speech` says."""

from asr_server.core.errors import InvalidValue
from asr_server.features.speech_output.encoding.formats import SpeechFormat
from asr_server.features.speech_output.outbox import (
    Flushed,
    SentenceEnded,
    SentenceStarted,
    SessionDone,
    SessionStarted,
    SpeechCancelled,
)
from asr_server.features.speech_output.text_socket import reference
from asr_server.features.speech_output.text_socket.server_messages import error_message, render

EVENTS = [
    SessionStarted("speech_1", SpeechFormat.MP3, ("instructions",)),
    SentenceStarted(2, "Well.", 36_012),
    SentenceEnded(2, 12),
    Flushed(),
    SpeechCancelled(2, 48_000),
    SessionDone(3, 24_000),
]


def test_the_reference_has_every_message_and_all_that_it_holds():
    """In the order in which a session says them."""
    messages = [*map(render, EVENTS), error_message(InvalidValue("No.", param="voice"))]
    assert [message["type"] for message in messages] == list(reference.SERVER)
    for message in messages:
        assert all(f"`{name}`" in reference.SERVER[message["type"]] for name in message if name != "type"), message


def test_places_are_in_milliseconds():
    """Rounded, from samples."""
    values = [{k: v for k, v in render(event).items() if isinstance(v, int)} for event in EVENTS[1:]]
    assert values == [
        {"index": 2, "start_ms": 1500},
        {"index": 2, "duration_ms": 0},
        {},
        {"sentences_done": 2, "sent_ms": 2000},
        {"sentences": 3, "duration_ms": 1000},
    ]
