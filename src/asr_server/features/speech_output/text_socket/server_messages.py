"""The messages that `WS /ws/speech` sends besides binary frames."""

from __future__ import annotations

from asr_server.core.audio import SPEECH_RATE
from asr_server.features.speech_output.outbox import (
    Flushed,
    SentenceEnded,
    SentenceStarted,
    SessionDone,
    SessionStarted,
    SpeechCancelled,
)
from asr_server.net.errors import CodedError, Json, error_body

Telling = SessionStarted | SentenceStarted | SentenceEnded | Flushed | SpeechCancelled | SessionDone


def render(event: Telling) -> Json:
    """Return the message for an event."""
    match event:
        case SessionStarted(id=identity, format=audio_format, ignored=ignored):
            options = {"sample_rate": SPEECH_RATE, "format": audio_format.value, "ignored": list(ignored)}
            return {"type": "started", "id": identity, **options}
        case SentenceStarted(index=index, text=text, start_samples=start):
            return {"type": "sentence", "index": index, "text": text, "start_ms": _ms(start)}
        case SentenceEnded(index=index, samples=samples):
            return {"type": "sentence_done", "index": index, "duration_ms": _ms(samples)}
        case Flushed():
            return {"type": "flushed"}
        case SpeechCancelled(sentences=sentences, samples=samples):
            return {"type": "cancelled", "sentences_done": sentences, "sent_ms": _ms(samples)}
        case SessionDone(sentences=sentences, samples=samples):
            return {"type": "done", "sentences": sentences, "duration_ms": _ms(samples)}


def error_message(error: CodedError) -> Json:
    """Return the message for an error."""
    return {"type": "error", **error_body(error)}


def _ms(samples: int) -> int:
    return round(samples * 1000 / SPEECH_RATE)
