"""Speech output for operators: its metrics, its part of `/health`, and why it has failed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from loguru import logger
from prometheus_client import CollectorRegistry, Counter, Histogram, Metric
from prometheus_client.core import GaugeMetricFamily

from asr_server.core.audio import SPEECH_RATE
from asr_server.core.metrics import with_series
from asr_server.features.speech_output.engines.protocol import Sentence, SpeechFinish, SpokenSentence
from asr_server.features.speech_output.synthesis import SPEECH_S, SpeechProcessor
from asr_server.ops.schemas import SpeechQueueBody
from asr_server.schedule.job import AnyJob, JobEnd, SchedulerObserver
from asr_server.schedule.model import ModelState

if TYPE_CHECKING:
    from asr_server.services import Services


class SentenceMetrics(SchedulerObserver):
    """Counters and histograms of sentences. Used on the thread of their engine."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self._sentences = Counter(
            "asr_speech_sentences_total",
            "Sentences for the speech engine, by their end as above.",
            ["end"],
            registry=registry,
        )
        self._wait = Histogram(
            "asr_speech_wait_seconds",
            "Time of a sentence in the queue until the engine begins it, without the time to load the engine.",
            registry=registry,
            buckets=SPEECH_S,
        )
        self._inference = Histogram(
            "asr_speech_inference_seconds",
            "Time of a finished sentence in the engine.",
            registry=registry,
            buckets=SPEECH_S,
        )
        self._audio = Counter(
            "asr_speech_audio_seconds_total",
            "Seconds of speech that the engine made of sentences that are done.",
            registry=registry,
        )
        self._characters = Counter(
            "asr_speech_characters_total",
            "Characters of sentences that are done, numbers in words.",
            registry=registry,
        )
        self._cut_short = Counter(
            "asr_speech_cut_short_total",
            "Sentences that the engine stopped at its budget, and which may lack their end.",
            registry=registry,
        )
        with_series(self._sentences, JobEnd)

    def started(self, job: AnyJob) -> None:
        self._wait.observe(job.waited_s)

    def ended(self, job: AnyJob, end: JobEnd, value: Any = None) -> None:
        """Count a sentence that ended; `value`: its result."""
        self._sentences.labels(end).inc()
        if isinstance(job.item, Sentence) and isinstance(value, SpokenSentence):
            self._inference.observe(job.ended_s - job.started_s)
            self._characters.inc(len(job.item.text))
            self._audio.inc(value.samples / SPEECH_RATE)
            self._cut_short.inc(value.finish is SpeechFinish.BUDGET)


def log_state(model: str, state: ModelState, took_s: float) -> None:
    named = {"model": model} if model else {}
    logger.info("speech engine", state=state.value, took_s=round(took_s, 3), **named)


def gauges(speech: SpeechProcessor) -> Iterator[Metric]:
    yield GaugeMetricFamily("asr_speech_texts", "Texts that are being spoken.", speech.texts)
    yield GaugeMetricFamily(
        "asr_speech_sentences_left", "Of these texts, the sentences that are not spoken yet.", speech.sentences_left
    )
    yield GaugeMetricFamily(
        "asr_speech_held_seconds", "Seconds of speech that are accepted but not yet spoken.", speech.admission.held_s
    )
    yield GaugeMetricFamily(
        "asr_speech_limit_seconds",
        "`MAX_QUEUE_AUDIO_S`; more gets 429, as does what cannot be spoken in time.",
        speech.admission.limit_s,
    )
    state = GaugeMetricFamily(
        "asr_speech_state",
        "1 for the current state of the speech engine; no series where nothing speaks.",
        labels=["state"],
    )
    for each in () if speech.silent_because else ModelState:
        state.add_metric([each], each is speech.engines.status.state)
    yield state
    yield GaugeMetricFamily(
        "asr_speech_encoder_running", "1 while there is a process that encodes audio.", speech.encoder.pid is not None
    )
    yield GaugeMetricFamily("asr_speech_files", "Answers that are being encoded.", speech.encoder.streams)


def speech_health(services: Services) -> dict[str, Any]:
    """Return the fields of `/health` about what speaks."""
    speech = services.of(SpeechProcessor)
    queue = SpeechQueueBody(
        texts=speech.texts,
        sentences_left=speech.sentences_left,
        held_s=round(speech.admission.held_s, 3),
        limit_s=speech.admission.limit_s,
    )
    if speech.silent_because:
        return {"speech_queue": queue}
    status = speech.engines.status
    return {
        "speech_state": status.state.value,
        "speech_model": speech.engines.named[0].model_id,
        "speech_error": status.load_error,
        "speech_queue": queue,
    }


def speech_failure(speech: SpeechProcessor) -> str:
    """Return why the process should be restarted, "" if it should not.

    A sentence that hangs is given up by the engine itself, so the age of its heartbeat says nothing.
    """
    if speech.silent_because:
        return ""
    engine = speech.engines.named[0].thread.snapshot()
    return engine.failure or ("" if engine.alive else "the thread of the speech engine has ended")
