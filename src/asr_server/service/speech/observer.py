"""What speech output reports of its work, for metrics."""

from __future__ import annotations

from asr_server.audio.encoding.formats import SpeechFormat
from asr_server.scheduling.observer import JobEnd, SchedulerObserver


class SpeechObserver(SchedulerObserver):
    """Ignores everything; to be overridden. The methods here are called on the event loop, those of sentences in the
    engine on its thread; all must return at once."""

    def first_audio(self, after_s: float) -> None:
        """The first audio of an answer that somebody waits for was ready `after_s` after its text was accepted."""

    def encoded(self, took_s: float) -> None:
        """The encoder took so long for a sentence."""

    def answered(self, audio_format: SpeechFormat, end: JobEnd) -> None:
        """The work for a text is over."""
