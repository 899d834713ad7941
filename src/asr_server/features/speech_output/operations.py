"""Speech output for operators: its metrics, its part of `/health`, and why it has failed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from asr_server.core.audio import SPEECH_RATE
from asr_server.features.speech_output.encoding.formats import SpeechFormat
from asr_server.features.speech_output.engines.protocol import Sentence, SpeechFinish, SpokenSentence
from asr_server.features.speech_output.sessions import SpeechSessions
from asr_server.features.speech_output.synthesis import SpeechObserver, SpeechProcessor
from asr_server.ops.metric_spec import MetricKind, MetricSample, MetricSpec, single
from asr_server.ops.schemas import SpeechQueueBody
from asr_server.ops.server_metrics import children, create, wait_s
from asr_server.schedule.job import AnyJob
from asr_server.schedule.model import ModelState
from asr_server.schedule.ports import JobEnd

if TYPE_CHECKING:
    from asr_server.ops.server_metrics import Metrics
    from asr_server.services import Services

# Speech: a person who asked hears silence until the first audio; a sentence is a tenth of a second of work, or seconds.
_SPEECH_S = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0, 10.0, 30.0)
_C, _G, _H = MetricKind.COUNTER, MetricKind.GAUGE, MetricKind.HISTOGRAM

SPEECH_ANSWERS = MetricSpec(
    "asr_speech_answers_total",
    _C,
    "Texts for which work was begun: `done`, `failed`, `left` (the caller disconnected), `late` (the deadline passed).",
    ("format", "end"),
)
SPEECH_FIRST_AUDIO = MetricSpec(
    "asr_speech_first_audio_seconds",
    _H,
    "From the acceptance of a text to the first audio, without jobs and kept answers.",
    (),
    _SPEECH_S,
)
SPEECH_TEXTS = MetricSpec("asr_speech_texts", _G, "Texts that are being spoken.")
SPEECH_LEFT = MetricSpec("asr_speech_sentences_left", _G, "Of these texts, the sentences that are not spoken yet.")
SPEECH_HELD = MetricSpec("asr_speech_held_seconds", _G, "Seconds of speech that are accepted but not yet spoken.")
SPEECH_LIMIT = MetricSpec(
    "asr_speech_limit_seconds", _G, "`MAX_QUEUE_SPEECH_S`; more gets 429, as does what cannot be spoken in time."
)
SPEECH_SENTENCES = MetricSpec(
    "asr_speech_sentences_total", _C, "Sentences for the speech engine, by their end as above.", ("end",)
)
SPEECH_WAIT = MetricSpec(
    "asr_speech_wait_seconds",
    _H,
    "Time of a sentence in the queue until the engine begins it, without the time to load the engine.",
    (),
    _SPEECH_S,
)
SPEECH_INFERENCE = MetricSpec(
    "asr_speech_inference_seconds", _H, "Time of a sentence in the engine, of those that are done.", (), _SPEECH_S
)
SPEECH_ENCODING = MetricSpec(
    "asr_speech_encoding_seconds", _H, "Time of a sentence in the encoder, with the wait for its turn.", (), _SPEECH_S
)
SPEECH_AUDIO = MetricSpec(
    "asr_speech_audio_seconds_total", _C, "Seconds of speech that the engine made of sentences that are done."
)
SPEECH_CHARACTERS = MetricSpec(
    "asr_speech_characters_total", _C, "Characters of sentences that are done, numbers in words."
)
SPEECH_CUT_SHORT = MetricSpec(
    "asr_speech_cut_short_total", _C, "Sentences that the engine stopped at its budget, and which may lack their end."
)
SPEECH_STATE = MetricSpec(
    "asr_speech_state", _G, "1 for the current state of the speech engine; no series where nothing speaks.", ("state",)
)
SPEECH_ENCODER = MetricSpec("asr_speech_encoder_running", _G, "1 while there is a process that encodes audio.")
SPEECH_FILES = MetricSpec("asr_speech_files", _G, "Answers that are being encoded.")

METRICS: tuple[MetricSpec, ...] = tuple(value for value in list(globals().values()) if isinstance(value, MetricSpec))


class SpeechMetrics(SpeechObserver):
    """Metrics that speech output and the thread of its engine report."""

    def __init__(self, metrics: Metrics) -> None:
        registry = metrics.registry
        answers = create(SPEECH_ANSWERS, registry)
        self._answers = {(name, end): answers.labels(name, end) for name in SpeechFormat for end in JobEnd}
        self._first_audio = create(SPEECH_FIRST_AUDIO, registry)
        self._sentences = children(create(SPEECH_SENTENCES, registry), tuple(JobEnd))
        self._wait = create(SPEECH_WAIT, registry)
        self._inference = create(SPEECH_INFERENCE, registry)
        self._encoding = create(SPEECH_ENCODING, registry)
        self._audio = create(SPEECH_AUDIO, registry)
        self._characters = create(SPEECH_CHARACTERS, registry)
        self._cut_short = create(SPEECH_CUT_SHORT, registry)

    def first_audio(self, after_s: float) -> None:
        """The first audio of an answer was ready."""
        self._first_audio.observe(after_s)

    def encoded(self, took_s: float) -> None:
        """A sentence was encoded."""
        self._encoding.observe(took_s)

    def answered(self, audio_format: SpeechFormat, end: JobEnd) -> None:
        """The work for a text is over."""
        self._answers[audio_format, end].inc()

    def started(self, job: AnyJob) -> None:
        """A sentence entered the engine."""
        self._wait.observe(wait_s(job))

    def ended(self, job: AnyJob, end: JobEnd, value: Any = None) -> None:
        """A sentence ended; `value`: its result."""
        self._sentences[end].inc()
        if isinstance(job.item, Sentence) and isinstance(value, SpokenSentence):
            self._inference.observe(job.ended_s - job.started_s)
            self._characters.inc(len(job.item.text))
            self._audio.inc(value.samples / SPEECH_RATE)
            self._cut_short.inc(value.finish is SpeechFinish.BUDGET)


def speech_gauges(services: Services) -> Iterable[MetricSample]:
    """Yield what is being spoken."""
    speech, sessions = services.of(SpeechProcessor), services.of(SpeechSessions)
    yield single(SPEECH_TEXTS, speech.texts + sessions.texts)
    yield single(SPEECH_LEFT, speech.sentences_left + sessions.sentences_left)
    yield single(SPEECH_HELD, speech.admission.held_s)
    yield single(SPEECH_LIMIT, speech.admission.limit_s)
    yield single(SPEECH_ENCODER, speech.encoder.pid is not None)
    yield single(SPEECH_FILES, speech.encoder.streams)
    state = None if speech.silent_because else speech.engines.status.state
    yield MetricSample(SPEECH_STATE, {(each,): each is state for each in ModelState} if state else {})


def speech_health(services: Services) -> dict[str, Any]:
    """Return the fields of `/health` about what speaks."""
    speech, sessions = services.of(SpeechProcessor), services.of(SpeechSessions)
    queue = SpeechQueueBody(
        texts=speech.texts + sessions.texts,
        sentences_left=speech.sentences_left + sessions.sentences_left,
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
    engine = speech.engines.named[0].snapshot()
    return engine.failure or ("" if engine.alive else "the thread of the speech engine has ended")
