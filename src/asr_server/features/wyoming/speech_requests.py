"""The events with which a Wyoming client asks for speech: `synthesize`, or a text in pieces.

A text in pieces is `synthesize-start`, `synthesize-chunk`s and `synthesize-stop`; each sentence is spoken when it is
complete. Home Assistant also sends the whole text as `synthesize` before `synthesize-stop`, for servers that speak
whole texts alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from wyoming.event import Event
from wyoming.tts import Synthesize, SynthesizeChunk, SynthesizeStart, SynthesizeStop, SynthesizeTextFormat

from asr_server.client.speech import SpeechFields
from asr_server.features.wyoming.speech_session import BridgeSpeech, SpeechAnswer, Write
from asr_server.features.wyoming.voice_names import speech_fields
from asr_server.text.sentences import SentenceStream

# Decides about abbreviations in a text whose language is not stated.
_USUAL_LANGUAGE = "en"


@dataclass(frozen=True, slots=True)
class SpeechTarget:
    """The server that speaks."""

    server: str
    token: str  # the key, "" for none
    language: str  # for clients that state none; "" for that of the text's script


class SpeechRequests:
    """The speech requests of one connection. Its thread and its connection to the server begin with the first."""

    def __init__(self, target: SpeechTarget, write: Write) -> None:
        """`write` is called on another thread."""
        self._target, self._write = target, write
        self._session: BridgeSpeech | None = None
        self._streamed: _StreamedText | None = None

    def handle(self, event: Event) -> bool:
        """Returns False for an event that does not ask for speech. Blocks while too much waits to be spoken."""
        if Synthesize.is_type(event.type):
            if self._streamed is None:
                self._synthesize(event)
        elif SynthesizeStart.is_type(event.type):
            self._stop()
            self._start(event)
        elif SynthesizeChunk.is_type(event.type):
            self._push(event)
        elif SynthesizeStop.is_type(event.type):
            if self._streamed is None:
                self._start(SynthesizeStart().event())
            self._stop()
        else:
            return False
        return True

    def close(self) -> None:
        """Cancel all work."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    @property
    def _open_session(self) -> BridgeSpeech:
        if self._session is None:
            self._session = BridgeSpeech(self._target.server, self._target.token, self._write)
        return self._session

    def _synthesize(self, event: Event) -> None:
        answer = SpeechAnswer(SpeechFields(), streamed=False)
        try:
            wanted = Synthesize.from_event(event)
            answer.fields = self._fields(wanted)
            text = _text(wanted.text)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            self._refuse(answer, event, error)
        else:
            self._open_session.say(answer, text)
            self._open_session.end(answer)

    def _start(self, event: Event) -> None:
        answer = SpeechAnswer(SpeechFields(), streamed=True)
        self._streamed = _StreamedText(answer, SentenceStream(_USUAL_LANGUAGE))
        try:
            answer.fields = self._fields(SynthesizeStart.from_event(event))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            self._refuse(answer, event, error)
        else:
            sentences = SentenceStream(answer.fields.get("language", _USUAL_LANGUAGE))
            self._streamed = _StreamedText(answer, sentences)

    def _push(self, event: Event) -> None:
        if self._streamed is None:
            self._start(SynthesizeStart().event())
        assert self._streamed is not None
        answer = self._streamed.answer
        try:
            text = _text(SynthesizeChunk.from_event(event).text)
        except (KeyError, TypeError) as error:
            self._refuse(answer, event, error)
            return
        if not answer.ended:
            for sentence in self._streamed.sentences.push(text):
                self._open_session.say(answer, sentence)

    def _stop(self) -> None:
        streamed, self._streamed = self._streamed, None
        if streamed is not None:
            for sentence in streamed.sentences.flush():
                self._open_session.say(streamed.answer, sentence)
            self._open_session.end(streamed.answer)

    def _fields(self, wanted: Synthesize | SynthesizeStart) -> SpeechFields:
        if wanted.text_format not in (None, SynthesizeTextFormat.TEXT):
            raise ValueError("text_format")
        return speech_fields(wanted.voice, self._target.language)

    def _refuse(self, answer: SpeechAnswer, event: Event, error: Exception) -> None:
        if isinstance(error, ValueError):
            self._open_session.fail(answer, "unsupported_text_format", "The text must be plain text.")
        else:
            message = f"The fields of this event are not Wyoming's: {event.type[:40]}."
            self._open_session.fail(answer, "invalid_event", message)


@dataclass(frozen=True, slots=True)
class _StreamedText:
    """A text that arrives, and its answer."""

    answer: SpeechAnswer
    sentences: SentenceStream


def _text(value: object) -> str:
    """Raises TypeError for what is no text."""
    if not isinstance(value, str):
        raise TypeError("text")
    return value
