"""The events of speech output, for metrics."""

from __future__ import annotations

from typing import Any

from asr_server.features.speech_output.encoding.formats import SpeechFormat
from asr_server.features.speech_output.engines.protocol import Sentence
from asr_server.schedule.job import AnyJob
from asr_server.schedule.ports import JobEnd, SchedulerObserver


class SpeechObserver(SchedulerObserver):
    """Ignores everything; to be overridden. All methods must return at once.

    The methods here are called on the event loop, and the inherited ones on the engine's thread.
    """

    def first_audio(self, after_s: float) -> None:
        """Note that the first audio of an interactive answer was ready `after_s` after its text was accepted."""

    def encoded(self, took_s: float) -> None:
        """Note that the encoder took `took_s` for a sentence."""

    def answered(self, audio_format: SpeechFormat, end: JobEnd) -> None:
        """Note that the work for a text is over."""


class SharedThreadObserver(SchedulerObserver):
    """Observes an engine thread that recognises and speaks.

    Reports sentences to `speech` and everything else to `engine`.
    """

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
