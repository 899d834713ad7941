"""What speech output reports of its work, for metrics."""

from __future__ import annotations

from typing import Any

from asr_server.features.speech_output.encoding.formats import SpeechFormat
from asr_server.features.speech_output.engines.protocol import Sentence
from asr_server.schedule.job import AnyJob
from asr_server.schedule.observer import JobEnd, SchedulerObserver


class SpeechObserver(SchedulerObserver):
    """Ignores everything; to be overridden. The methods here are called on the event loop, those of sentences in the
    engine on its thread; all must return at once."""

    def first_audio(self, after_s: float) -> None:
        """The first audio of an answer that somebody waits for was ready `after_s` after its text was accepted."""

    def encoded(self, took_s: float) -> None:
        """The encoder took so long for a sentence."""

    def answered(self, audio_format: SpeechFormat, end: JobEnd) -> None:
        """The work for a text is over."""


class SharedThreadObserver(SchedulerObserver):
    """Of an engine thread that hears and speaks: reports sentences to `speech` and everything else to `engine`."""

    def __init__(self, engine: SchedulerObserver, speech: SchedulerObserver) -> None:
        self._engine, self._speech = engine, speech

    def started(self, job: AnyJob) -> None:
        self._of(job).started(job)

    def ended(self, job: AnyJob, end: JobEnd, value: Any = None) -> None:
        self._of(job).ended(job, end, value)

    def stepped(self, rows: int, took_s: float) -> None:
        self._engine.stepped(rows, took_s)

    def _of(self, job: AnyJob) -> SchedulerObserver:
        return self._speech if isinstance(job.item, Sentence) else self._engine
