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
            "Ended sentences.",
            ["end"],
            registry=registry,
        )
        self._wait = Histogram(
            "asr_speech_wait_seconds",
            "Wait of a sentence, without loading.",
            registry=registry,
            buckets=SPEECH_S,
        )
        self._inference = Histogram(
            "asr_speech_inference_seconds",
            "Time of a sentence in the engine.",
            registry=registry,
            buckets=SPEECH_S,
        )
        self._audio = Counter(
            "asr_speech_audio_seconds_total",
            "Speech of spoken sentences.",
            registry=registry,
        )
        self._characters = Counter(
            "asr_speech_characters_total",
            "Characters of spoken sentences.",
            registry=registry,
        )
        self._cut_short = Counter(
            "asr_speech_cut_short_total",
            "Sentences that may lack their end.",
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
    yield GaugeMetricFamily("asr_speech_texts", "Texts being spoken.", speech.texts)
    yield GaugeMetricFamily("asr_speech_sentences_left", "Sentences not spoken yet.", speech.sentences_left)
    yield GaugeMetricFamily("asr_speech_held_seconds", "Accepted but unspoken speech.", speech.admission.held_s)
    yield GaugeMetricFamily(
        "asr_speech_limit_seconds",
        "`MAX_QUEUE_AUDIO_S`.",
        speech.admission.limit_s,
    )
    state = GaugeMetricFamily(
        "asr_speech_state",
        "1 for the state of the speech engine.",
        labels=["state"],
    )
    for each in () if speech.silent_because else ModelState:
        state.add_metric([each], each is speech.engines.status.state)
    yield state
    yield GaugeMetricFamily(
        "asr_speech_encoder_running", "1 while the encoder of audio runs.", speech.encoder.pid is not None
    )
    yield GaugeMetricFamily("asr_speech_files", "Answers being encoded.", speech.encoder.streams)


def speech_health(services: Services) -> dict[str, Any]:
    """Return the fields of `/health` about speech."""
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

    The engine itself gives up on a sentence that hangs, so the age of its heartbeat says nothing.
    """
    if speech.silent_because:
        return ""
    engine = speech.engines.named[0].thread.snapshot()
    return engine.failure or ("" if engine.alive else "the thread of the speech engine has ended")
