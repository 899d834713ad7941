"""The pipeline of a recording, with a scripted engine: answers that loop, fail or never come are injected here."""

import asyncio
import io
import time
import wave
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import AsyncMock

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from asr_server import demo
from asr_server.audio.conftest import wav
from asr_server.audio.decode import Decoder
from asr_server.audio.decoder_wire import DecodeLimits
from asr_server.audio.segmentation import SpeechSpan
from asr_server.core.conftest import counts, until
from asr_server.core.errors import DeadlineExceeded, EngineFailed, ModelUnavailable, TranscriptionFailed
from asr_server.core.transcript import CoverageKind, RepairReason, Segment, TimeSource, Transcript, Word
from asr_server.engine.client import EngineClient
from asr_server.engine.protocol import DEFAULT_TRAITS, Finish, Hypothesis, Tokens
from asr_server.recordings import pipeline, requests
from asr_server.recordings.pipeline import Finished, RunOptions, SegmentDone, Started, TextDelta
from asr_server.recordings.requests import TranscriptionRequest
from asr_server.recordings.segmenter import RecordingMetrics, RecordingSignal
from asr_server.schedule.admission import Admission
from asr_server.schedule.job import Priority, RequestClock
from asr_server.schedule.model import RowDelta, RowDone, RowFailed
from asr_server.schedule.thread import EngineThread

REQUEST = TranscriptionRequest()
ENGLISH = TranscriptionRequest(language="English")  # so that no text waits until its language is decided
RUN, STREAM, WITH_GAPS = RunOptions(), RunOptions(deltas=True), RunOptions(reports_gaps=True)


class Scripted:
    """A batch that answers each utterance by `script(samples)`: a `Finish`, an error, or None for never."""

    loaded, free_slots, urgent_slots = True, 4, 4
    language, text = staticmethod(lambda samples: "English"), staticmethod(lambda samples: f"w{samples}")
    limited = ("limited", -0.1)  # the text and the log-probability of its tokens if the language is limited to one
    logprob, tokens = -0.1, 1  # of each token of an answer, and their number
    deltas = ()  # texts that are sent in steps of their own before the answer

    def __init__(self, script):
        self.script, self.rows, self.seen = script, {}, []
        self.names = {}  # log-probabilities of a token before the others that names the language

    def load(self): ...

    def unload(self): ...

    def admit(self, key, item, urgent=False):
        self.rows[key] = [item, *self.deltas]
        self.seen.append(len(item.audio))

    def step(self, begin_s=None):
        time.sleep(0.001)  # a step of a model releases the interpreter too
        for key, row in list(self.rows.items()):
            item = row[0]
            if len(row) > 1:
                text = row.pop(1)
                yield RowDelta(key, Tokens((1,), (-0.1,), text if item.stream else ""))
                continue
            samples = len(item.audio)
            if (finish := self.script(samples)) is None:
                continue
            del self.rows[key]
            if isinstance(finish, Exception):
                yield RowFailed(key, finish)
                continue
            language, text, logprob = self.language(samples), self.text(samples), self.logprob
            if len(item.languages) == 1:
                (language,), (text, logprob) = item.languages, self.limited
            name = [self.names[language]] if language in self.names else []
            logprobs, pieces = (*name, *[logprob] * self.tokens), (*[b""] * len(name), *[b"w"] * self.tokens)
            ids = (1,) * len(logprobs)
            yield RowDone(key, Hypothesis(text, language, ids, logprobs, finish, 1, 1, 1, pieces=pieces))

    def drop(self, key):
        self.rows.pop(key, None)


class Made:
    def __init__(self, script, *, limit_s=1000.0, timeout_s=20.0, look_ahead=16, traits=DEFAULT_TRAITS, **more):
        self.batch = Scripted(script)
        self.thread = EngineThread(self.batch, idle_timeout_s=0)
        self.registry = CollectorRegistry()
        self.decoder = Decoder(DecodeLimits(max_audio_s=600), registry=self.registry)
        self.admission = Admission(limit_s)
        client = EngineClient(self.thread, traits)
        more["metrics"] = RecordingMetrics(self.registry)
        self.resources = pipeline.PipelineResources(self.decoder, client, self.admission, timeout_s, look_ahead, **more)
        self.pipeline = pipeline.RecordingPipeline(self.resources)
        self.events = []

    async def transcribe(self, recording, request=REQUEST, options=RUN):
        return await self.pipeline.transcribe(recording, request, options, self.emit)

    async def emit(self, event):
        self.events.append(event)

    async def close(self):
        await self.decoder.close()
        self.thread.close()


@pytest.fixture
async def make():
    made = []

    def build(script, **limits):
        made.append(Made(script, **limits))
        return made[-1]

    yield build
    for one in made:
        await one.close()


with wave.open(str(demo.sample().recording)) as source:
    SAMPLE = np.frombuffer(source.readframes(source.getnframes()), np.int16)
PAUSE = np.zeros(5 * 16_000, np.int16)


def file_of(*parts):
    return wav(np.concatenate(parts).tobytes())


@pytest.fixture
def recording():
    """The sample three times, with pauses that part it into three spans."""
    with file_of(SAMPLE, PAUSE, SAMPLE, PAUSE, SAMPLE) as file:
        yield file


async def test_a_recording_is_a_series_of_events_in_its_order(make, recording):
    made = make(lambda samples: Finish.END)
    transcript = await made.transcribe(recording)
    assert [type(event) for event in made.events] == [Started, *[SegmentDone] * 3, Finished]
    assert round(made.events[0].claimed_s * 1000) == transcript.duration_ms
    assert made.events[-1].transcript == transcript
    assert transcript.segments == tuple(event.segment for event in made.events[1:-1])
    assert all(segment.complete for segment in transcript.segments)
    starts = [segment.start_ms for segment in transcript.segments]
    assert starts == sorted(starts)
    assert transcript.text == " ".join(f"w{samples}" for samples in made.batch.seen)


async def test_text_that_was_sent_is_not_tried_again(make, recording):
    """Nothing is taken back: the looping answers stay, and say that they are not complete."""
    made = make(lambda samples: Finish.LOOP)
    made.batch.deltas = ("turn on",)
    made.batch.free_slots = 1  # one after the other: each delta is taken before the next span begins
    transcript = await made.transcribe(recording, ENGLISH, STREAM)
    assert len(made.batch.seen) == 3
    assert transcript.text == "turn on turn on turn on"
    assert not any(segment.complete for segment in transcript.segments)


async def test_the_first_text_of_a_stream_does_not_wait_for_the_spans_behind_it(make, recording):
    """No other span is queued before the first has begun to speak; without deltas all are."""
    may_end = False
    made = make(lambda samples: Finish.END if may_end else None)
    task = asyncio.create_task(made.transcribe(recording, options=STREAM))
    await until(lambda: made.batch.seen)
    await asyncio.sleep(0.3)
    assert len(made.batch.seen) == 1
    may_end = True
    await task
    assert len(made.batch.seen) == 3


@pytest.mark.parametrize("options", [RUN, STREAM])
async def test_a_span_that_loops_is_tried_once_in_halves(make, recording, options):
    """Long spans fail, halves succeed: twice the segments, all complete, no sample lost between the halves. A stream
    has the text of the halves, where the loop of the whole was never sent."""
    made = make(lambda samples: Finish.LOOP if samples > 45_000 else Finish.END)
    transcript = await made.transcribe(recording, options=options)
    assert transcript.text == " ".join(segment.text for segment in transcript.segments)
    deltas = [event.text for event in made.events if isinstance(event, TextDelta)]
    assert (len(deltas), "".join(deltas)) == ((6, transcript.text) if options is STREAM else (0, ""))
    assert len(transcript.segments) == 6
    assert all(segment.complete for segment in transcript.segments)
    for first, second in zip(transcript.segments[::2], transcript.segments[1::2], strict=True):
        assert first.end_ms == second.start_ms
    halves = [samples for samples in made.batch.seen if samples <= 45_000]
    assert sum(halves) == sum(made.batch.seen) - sum(halves)
    assert {segment.repaired for segment in transcript.segments} == {RepairReason.LOOP}
    assert counts(made.registry, "asr_repaired_segments_total") == {(RepairReason.LOOP,): 6}


def two_voices(config, levels, vad):
    """Cuts any recording into 6 s of one person and 2 s of another one, who speaks in between."""
    levels.put(0, *np.zeros((2, 2_000), np.float32))
    found = [
        SpeechSpan(16_000 * a, 16_000 * b, np.ones(16_000 * (b - a), np.float32), 1.0, speaker=who)
        for a, b, who in ((0, 6, "A"), (2, 4, "B"))
    ]
    return SimpleNamespace(push=lambda block, is_last=False: found if is_last else [])


async def test_segments_of_channels_are_in_the_order_of_time(make, recording):
    """A span that was halved may reach behind the beginning of the next one; what has no text is left out."""

    async def split(decoder, source, caller):
        return RecordingSignal(segmenter=two_voices, is_split=True)

    made = make(lambda samples: Finish.LOOP if samples > 80_000 else Finish.END, split_signal=split)
    made.batch.text = lambda samples: "w"
    transcript = await made.transcribe(recording, TranscriptionRequest(channel_mode=requests.ChannelMode.SPLIT))
    assert [segment.speaker for segment in made.events[-1].transcript.segments] == ["A", "B", "A"]
    starts_ms = [segment.start_ms for segment in transcript.segments]
    assert starts_ms == sorted(starts_ms)


async def test_what_still_fails_is_marked_not_dropped(make, recording):
    """Halves that loop too are kept and say that they are not complete; there is no third try."""
    made = make(lambda samples: Finish.LOOP)
    transcript = await made.transcribe(recording)
    assert [segment.complete for segment in transcript.segments] == [False] * 6
    assert len(made.batch.seen) == 9
    reasons = {part.reason for part in transcript.coverage if part.kind is CoverageKind.UNHEARD}
    assert reasons == {RepairReason.LOOP}
    assert transcript.covered_ms(CoverageKind.WORDS) == 0
    assert {segment.repaired for segment in transcript.segments} == {None}


async def test_a_long_recording_is_decoded_as_far_as_it_is_worked_on(make):
    """While nothing is answered, no more than the look-ahead is decoded and held: the length costs no memory."""
    made = make(lambda samples: None, look_ahead=2)
    with file_of(*[SAMPLE] * 140) as file:  # 9 min
        task = asyncio.create_task(made.transcribe(file))
        await until(lambda: len(made.batch.seen) == 4)  # one taken, two ready, one that finds no place
        await asyncio.sleep(0.3)
        assert len(made.batch.seen) == 4
        assert made.events[0].claimed_s > 500
        assert made.registry.get_sample_value("asr_decoded_audio_seconds_total") < 5 * 30 + 4
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert made.admission.held_s == 0


async def test_an_error_waits_for_the_spans_before_it(make, recording):
    """The last span fails at once, the first is answered later: it is sent before the error."""
    slow = iter([None] * 20)

    def script(samples):
        if samples == made.batch.seen[0]:
            return next(slow, Finish.END)
        return TranscriptionFailed("broken")

    made = make(script)
    with pytest.raises(TranscriptionFailed):
        await made.transcribe(recording, options=STREAM)
    assert [type(event) for event in made.events] == [Started, TextDelta, SegmentDone]
    await until(lambda: not made.batch.rows)


async def test_the_first_segment_of_a_stream_waits_for_no_other(make, recording):
    """Somebody sees it; elsewhere its language is weighed by what follows."""

    def script(samples):
        is_first = samples == made.batch.seen[0]
        return Finish.END if is_first or any(isinstance(event, SegmentDone) for event in made.events) else None

    made = make(script)
    async with asyncio.timeout(20):
        await made.transcribe(recording, options=replace(RUN, streams=True))


async def test_nothing_is_answered_where_all_spans_failed_or_all_must_be_heard(make, recording):
    made = make(lambda samples: TranscriptionFailed("broken"))
    with pytest.raises(TranscriptionFailed, match="broken"):
        await made.transcribe(recording, options=WITH_GAPS)
    assert len(made.batch.seen) == 3
    answers = iter([Finish.END, TranscriptionFailed("broken")])
    made = make(lambda samples: next(answers, Finish.END))
    with pytest.raises(TranscriptionFailed, match="broken"):
        await made.transcribe(recording, TranscriptionRequest(strict=True), WITH_GAPS)


@pytest.mark.parametrize("failure", [DeadlineExceeded("late"), EngineFailed("gone"), ModelUnavailable("none")])
async def test_a_failure_that_is_not_of_one_span_is_of_the_recording(make, recording, failure):
    """An error is of the recording if its time is up, or if later spans cannot be processed either."""
    answers = iter([Finish.END, failure])
    made = make(lambda samples: next(answers, Finish.END))
    with pytest.raises(type(failure)):
        await made.transcribe(recording, options=WITH_GAPS)


async def test_nothing_said_is_no_delta(make, recording):
    """Spans in which the model hears no words give no text, not even an empty one, and leave no segment."""
    made = make(lambda samples: Finish.END)
    made.batch.text = lambda samples: ""
    transcript = await made.transcribe(recording, options=STREAM)
    assert len(made.batch.seen) == 3
    assert not [event for event in made.events if isinstance(event, TextDelta)]
    assert (transcript.text, transcript.segments) == ("", ())


async def test_no_segment_ends_behind_the_recording(make):
    """Half a millisecond over a whole one is rounded alike at both ends."""
    made = make(lambda samples: Finish.END)
    with file_of(SAMPLE[4_000 : 4_000 + 32_056]) as file:
        transcript = await made.transcribe(file)
    assert transcript.segments[-1].end_ms == transcript.duration_ms


async def test_long_recordings_are_bulk_work(make):
    """Over a minute a recording gives way to short ones; a job always does."""
    priorities = []
    made = make(lambda samples: Finish.END)
    submit = made.thread.submit
    made.thread.submit = lambda job: (priorities.append(job.priority), submit(job))[1]
    for repeats, options in ((1, RUN), (30, RUN), (1, RunOptions(Priority.BULK))):
        with file_of(*[SAMPLE] * repeats) as file:
            await made.transcribe(file, options=options)
    assert priorities[0] is Priority.INTERACTIVE
    assert len(priorities) > 4
    assert set(priorities[1:]) == {Priority.BULK}


@pytest.mark.parametrize("options", [RUN, STREAM])
@pytest.mark.parametrize(
    ("logprob", "tokens", "text", "is_kept"),
    [
        (-0.6, 12, "w", True),
        (-0.8, 12, "w", False),
        (-0.6, 6, "w", False),  # in 5 s
        (-0.6, 12, "♪♪", False),
    ],
)
async def test_words_for_noise_need_support(make, options, logprob, tokens, text, is_kept):
    """What the detector takes for noise has words if its tokens are likelier than not and as many as in slow speech."""
    made = make(lambda samples: Finish.END)
    made.batch.logprob, made.batch.tokens, made.batch.text = logprob, tokens, lambda samples: text
    made.batch.deltas = ("turn on",)
    asked = replace(ENGLISH, vad=requests.VoiceDetection.ADVISE)
    noise = np.random.default_rng(0).normal(0, 3_000, 5 * 16_000).astype(np.int16)
    with file_of(noise, SAMPLE) as file:
        transcript = await made.transcribe(file, asked, options)
    assert len(made.batch.seen) == 2
    kinds = [CoverageKind.WORDS] if is_kept else [CoverageKind.SOUND, CoverageKind.WORDS]
    assert [part.kind for part in transcript.coverage] == kinds
    assert [segment.text for segment in transcript.segments] == [text] * (2 if is_kept else 1)
    if options is STREAM:
        deltas = [event.text for event in made.events if isinstance(event, TextDelta)]
        whole = [text] if is_kept else []  # it is sent when it is known to be kept
        assert [delta.strip() for delta in deltas] == [*whole, "turn on"]


@pytest.mark.parametrize("options", [RUN, STREAM])
@pytest.mark.parametrize(
    ("limited", "english", "hearings", "expected"),
    [
        (("对", -0.05), -0.5, 3, "对"),
        (("对", -9.0), -0.5, 3, "and so on and so forth"),
        (("", 0.0), -0.5, 3, "and so on and so forth"),
        (("对", -0.05), -0.001, 2, "and so on and so forth"),
    ],
)
async def test_a_short_outlier_is_heard_in_the_language_around_it(make, options, limited, english, hearings, expected):
    """Unless its language is sure. The likelier answer is taken, never silence for words, and only that is sent. The
    recording is in the language of most seconds: a script with few characters counts as much as another."""
    made = make(lambda samples: Finish.END)
    made.batch.language = lambda samples: "Chinese" if samples > 48_000 else "English"
    made.batch.text = lambda samples: "好" if samples > 48_000 else "and so on and so forth"
    made.batch.limited, made.batch.names, made.batch.deltas = limited, {"English": english, "Chinese": -0.1}, ("好",)
    with file_of(SAMPLE, PAUSE, SAMPLE[:16_000], PAUSE) as file:
        transcript = await made.transcribe(file, options=options)
    reason = RepairReason.LANGUAGE if expected == "对" else None
    assert [segment.text for segment in transcript.segments] == ["好", expected]
    assert [one.language for one in transcript.segments] == ["Chinese", "Chinese" if reason else "English"]
    assert transcript.language == "Chinese"
    assert [segment.repaired for segment in transcript.segments] == [None, reason]
    assert counts(made.registry, "asr_repaired_segments_total") == ({(reason,): 1} if reason else {})
    assert len(made.batch.seen) == hearings
    if options is STREAM:
        assert "".join(event.text for event in made.events if isinstance(event, TextDelta)) == transcript.text


async def test_a_prompt_that_has_no_effect_is_reported(make, recording):
    """By the transcript, where the engine has no use for it, and only if there was one."""
    for uses_context, hotwords, warned in ((False, ("x",), True), (False, (), False), (True, ("x",), False)):
        made = make(lambda samples: Finish.END, traits=replace(DEFAULT_TRAITS, uses_context=uses_context))
        warnings = (await made.transcribe(recording, TranscriptionRequest(hotwords=hotwords))).warnings
        assert ["hotwords are ignored" in warning for warning in warnings] == [True] * warned
        recording.seek(0)


async def test_long_recordings_are_rendered_beside_the_event_loop():
    """Live sessions go on while the cues of a long recording are found."""
    words = tuple(Word("words,", 300 * n, 300 * n + 300, TimeSource.ALIGNED) for n in range(6_000))
    segment = Segment(0, 1_800_000, "words, " * 6_000, "English", (), 0.0, 0.0, words=words)
    transcript = Transcript("", "English", 1_800_000, (segment,))
    made = asyncio.create_task(_processor(transcript).process(io.BytesIO(), requests.SubtitleRequest(), RunOptions()))
    turns = 0
    while not made.done():
        await asyncio.sleep(0.001)
        turns += 1
    result, _ = await made
    assert result.content.count(b"-->") > 300
    assert turns > 5


async def test_a_translation_has_what_is_left_of_the_time():
    """The limit of a request is for the transcription and the translation together."""
    answer = AsyncMock(return_value=requests.Result(b"", "text/plain"))
    processor = _processor(Transcript("", "", 0, ()), SimpleNamespace(answer=answer))
    await processor.process(io.BytesIO(), requests.TranslationRequest(), RunOptions(timeout_s=5.0))
    assert 4.0 < answer.call_args.args[2] <= 5.0


def _processor(transcript, translator=None):
    resources = SimpleNamespace(engine=SimpleNamespace(clock=RequestClock()), timeout_s=300.0)
    transcribed = SimpleNamespace(transcribe=AsyncMock(return_value=transcript), resources=resources)
    return pipeline.RequestProcessor(transcribed, translator)
