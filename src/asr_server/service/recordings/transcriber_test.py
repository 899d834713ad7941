"""The way of a recording, with a scripted engine: answers that loop, fail or never come are injected here."""

import asyncio
import io
import time
import wave
from contextlib import aclosing

import numpy as np
import pytest

from asr_server import demo
from asr_server.audio.decode import DecodeLimits, Decoder
from asr_server.core.errors import DeadlineExceeded, InvalidAudio, Overloaded, TranscriptionFailed
from asr_server.core.transcript import Segment
from asr_server.engine.protocol import Finish, Hypothesis
from asr_server.scheduling.admission import Admission
from asr_server.scheduling.job import Priority
from asr_server.scheduling.ports import RowDone, RowFailed
from asr_server.scheduling.thread import EngineThread
from asr_server.service.recordings.pipeline import RecordingPipeline
from asr_server.service.recordings.segmenter import SpeechSpan
from asr_server.service.recordings.span import SpanContext
from asr_server.service.recordings.transcriber import TextDelta, Transcriber, TranscriptionStarted
from asr_server.service.requests import TranscribeOptions


class Scripted:
    """A batch that answers each utterance by `script(samples)`: a `Finish`, an error, or None for never.

    `sampled`: whether the utterance in question is to be sampled.
    """

    loaded, free_slots, text = True, 4, "w{samples}"

    def __init__(self, script):
        self.script, self.rows, self.seen, self.sampled = script, {}, [], False

    def load(self): ...

    def unload(self): ...

    def admit(self, key, item):
        self.rows[key] = item
        self.seen.append(len(item.audio))

    def step(self):
        for key, item in list(self.rows.items()):
            samples, self.sampled = len(item.audio), item.temperature > 0
            finish = self.script(samples)
            if finish is None:
                continue
            del self.rows[key]
            if isinstance(finish, Exception):
                yield RowFailed(key, finish)
            else:
                yield RowDone(
                    key, Hypothesis(self.text.format(samples=samples), "English", (1,), (-0.1,), finish, 1, 1, 1)
                )

    def drop(self, key):
        self.rows.pop(key, None)


@pytest.fixture
async def make():
    made = []

    def build(script, *, limit_s=1000.0, timeout_s=20.0, look_ahead=16):
        batch = Scripted(script)
        thread = EngineThread(batch, idle_timeout_s=0)
        decoder = Decoder(DecodeLimits(max_audio_s=600))
        made.append((thread, decoder))
        transcriber = Transcriber(
            decoder=decoder,
            engine=thread,
            admission=Admission(limit_s),
            timeout_s=timeout_s,
            look_ahead=look_ahead,
        )
        return transcriber, batch, thread

    yield build
    for thread, decoder in made:
        await decoder.close()
        thread.close()


@pytest.fixture
def recording(tmp_path):
    """The sample three times, with pauses that part it into three spans."""
    with wave.open(str(demo.sample().recording)) as source:
        pcm = np.frombuffer(source.readframes(source.getnframes()), np.int16)
    pause = np.zeros(5 * 16_000, np.int16)
    path = tmp_path / "three.wav"
    with wave.open(str(path), "wb") as sink:
        sink.setparams((1, 2, 16_000, 0, "NONE", ""))
        sink.writeframes(np.concatenate([pcm, pause, pcm, pause, pcm]).tobytes())
    with path.open("rb") as file:
        yield file


async def test_spans_come_back_in_order_and_whole(make, recording):
    """Three spans, three segments, in the order of the recording."""
    transcriber, batch, _ = make(lambda samples: Finish.END)
    transcript = await transcriber.transcribe(recording, TranscribeOptions())
    assert len(transcript.segments) == len(batch.seen) == 3
    assert all(segment.complete for segment in transcript.segments)
    assert [s.start_ms for s in transcript.segments] == sorted(s.start_ms for s in transcript.segments)


@pytest.mark.parametrize("finish", [Finish.LOOP, Finish.BUDGET])
async def test_a_span_that_loops_is_tried_once_in_halves(make, recording, finish):
    """Long spans fail, halves succeed: twice the segments, all complete, no sample lost between the halves."""
    transcriber, batch, _ = make(lambda samples: finish if samples > 45_000 else Finish.END)
    transcript = await transcriber.transcribe(recording, TranscribeOptions())
    assert len(transcript.segments) == 6
    assert all(segment.complete for segment in transcript.segments)
    for first, second in zip(transcript.segments[::2], transcript.segments[1::2], strict=True):
        assert first.end_ms == second.start_ms
    assert sorted(batch.seen)[6:] == sorted(s for s in batch.seen if s > 45_000)


async def test_what_still_fails_is_marked_not_dropped(make, recording):
    """Halves that loop too are kept and say that they are not complete; there is no third try."""
    transcriber, batch, _ = make(lambda samples: Finish.LOOP)
    transcript = await transcriber.transcribe(recording, TranscribeOptions())
    assert len(transcript.segments) == 6
    assert not any(segment.complete for segment in transcript.segments)
    assert len(batch.seen) == 9


async def test_a_sampled_loop_is_tried_again_greedily(make, recording):
    """Sampling that loops falls back to the greedy answer of the whole span, and the segment says how it was made."""
    transcriber, batch, _ = make(lambda samples: Finish.LOOP if batch.sampled else Finish.END)
    transcript = await transcriber.transcribe(recording, TranscribeOptions(temperature=0.7))
    assert len(batch.seen) == 6
    assert len(set(batch.seen)) == 3
    assert [segment.temperature for segment in transcript.segments] == [0.0, 0.0, 0.0]


async def test_a_long_recording_is_decoded_as_far_as_it_is_worked_on(make, tmp_path):
    """While nothing is answered, no more than the look-ahead is decoded and held: the length costs no memory."""
    transcriber, batch, _ = make(lambda samples: None, look_ahead=2)
    with wave.open(str(demo.sample().recording)) as source:
        pcm = source.readframes(source.getnframes())
    path = tmp_path / "long.wav"
    with wave.open(str(path), "wb") as sink:
        sink.setparams((1, 2, 16_000, 0, "NONE", ""))
        sink.writeframes(pcm * 140)  # 9 min
    with path.open("rb") as file:
        order = SpanContext(TranscribeOptions(), time.monotonic() + 20, pieces=False)
        async with RecordingPipeline(transcriber._means, file, order) as works:
            await works.next()
            await _until(lambda: len(batch.seen) == 4)  # one taken, two ready, one that finds no place
            await asyncio.sleep(0.3)
            assert len(batch.seen) == 4
            assert works.progress.claimed_s > 500
            assert works.progress.decoded_s < 5 * 30 + 4
        assert transcriber._means.admission.held_s == 0


async def test_what_was_said_before_the_damage_is_answered_first(make, recording, monkeypatch):
    """A recording that proves bad in the middle gives its spans so far, then the error."""
    transcriber, _, _ = make(lambda samples: Finish.END)
    whole = Decoder.stream

    async def damaged(self, source, progress=None):
        async for block in whole(self, source, progress):
            yield block
            if progress.decoded_s > 14:
                raise InvalidAudio("The file is damaged.")

    monkeypatch.setattr(Decoder, "stream", damaged)
    async with aclosing(transcriber.stream(recording, TranscribeOptions(), pieces=False)) as items:
        assert [type(await anext(items)) for _ in range(2)] == [TranscriptionStarted, Segment]
        with pytest.raises(InvalidAudio):
            await anext(items)


async def test_one_failing_span_fails_the_request_and_frees_the_rest(make, recording):
    """The caller gets the error; no other span of the recording stays in the batch or the queue."""
    answers = iter([TranscriptionFailed("broken")])
    transcriber, batch, thread = make(lambda samples: next(answers, None))
    with pytest.raises(TranscriptionFailed):
        await transcriber.transcribe(recording, TranscribeOptions())
    await _until(lambda: not batch.rows and thread.snapshot().waiting_s == 0)


async def test_a_cancelled_caller_frees_everything(make, recording):
    """Cancelling the task empties the batch at the next step, and the held seconds are given back."""
    transcriber, batch, _ = make(lambda samples: None)
    task = asyncio.create_task(transcriber.transcribe(recording, TranscribeOptions()))
    await _until(lambda: batch.rows)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await _until(lambda: not batch.rows)
    assert transcriber._means.admission.held_s == 0


async def test_the_deadline_is_ours(make, recording):
    """Work that never ends is a 504 of the server, and is taken out of the batch."""
    transcriber, batch, _ = make(lambda samples: None, timeout_s=0.8)
    with pytest.raises(DeadlineExceeded):
        await transcriber.transcribe(recording, TranscribeOptions())
    await _until(lambda: not batch.rows)


async def test_a_full_server_refuses_after_decoding_too(make, recording):
    """The seconds of a recording are known when it is decoded: the second one that does not fit is refused."""
    transcriber, batch, _ = make(lambda samples: None, limit_s=25.0)
    first = asyncio.create_task(transcriber.transcribe(recording, TranscribeOptions()))
    await _until(lambda: batch.rows)
    with pytest.raises(Overloaded):
        await transcriber.transcribe(recording, TranscribeOptions())
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)


def test_halves_meet_at_the_quietest_place():
    """A span is parted in its middle third, where it is quiet."""
    rng = np.random.default_rng(0)
    audio = rng.normal(0, 0.1, 16_000 * 9).astype(np.float32)
    audio[16_000 * 5 : 16_000 * 5 + 3_000] = 0
    first, second = SpeechSpan(0, len(audio), audio, 0.9).halves()
    assert (first.start, second.end) == (0, len(audio))
    assert first.end == second.start
    assert 16_000 * 5 - 512 <= first.end <= 16_000 * 5 + 3_000


async def test_nothing_said_is_no_piece(make, recording):
    """Spans in which the model hears no words give no text, not even an empty one, and leave no segment."""
    transcriber, batch, _ = make(lambda samples: Finish.END)
    batch.text = ""
    async with aclosing(transcriber.stream(recording, TranscribeOptions())) as items:
        found = [item async for item in items]
    assert len(batch.seen) == 3
    assert not [item for item in found if isinstance(item, TextDelta)]
    assert (found[-1].text, found[-1].segments) == ("", ())


async def test_no_segment_ends_behind_the_recording(make, tmp_path):
    """Half a millisecond over a whole one is rounded alike at both ends."""
    transcriber, _, _ = make(lambda samples: Finish.END)
    path = tmp_path / "short.wav"
    with wave.open(str(demo.sample().recording)) as source, wave.open(str(path), "wb") as sink:
        sink.setparams((1, 2, 16_000, 0, "NONE", ""))
        sink.writeframes(source.readframes(4_000 + 32_056)[8_000:])
    with path.open("rb") as file:
        transcript = await transcriber.transcribe(file, TranscribeOptions())
    assert transcript.segments[-1].end_ms == transcript.duration_ms


async def test_long_recordings_are_bulk_work(make, tmp_path):
    """Over a minute a recording gives way to short ones."""
    priorities = []
    transcriber, _, thread = make(lambda samples: Finish.END)
    submit = thread.submit
    thread.submit = lambda job: (priorities.append(job.priority), submit(job))[1]
    with wave.open(str(demo.sample().recording)) as source:
        pcm = source.readframes(source.getnframes())
    for repeats in (1, 30):
        body = io.BytesIO()
        with wave.open(body, "wb") as sink:
            sink.setparams((1, 2, 16_000, 0, "NONE", ""))
            sink.writeframes(pcm * repeats)
        path = tmp_path / f"{repeats}.wav"
        path.write_bytes(body.getvalue())
        with path.open("rb") as file:
            await transcriber.transcribe(file, TranscribeOptions())
    assert priorities[0] is Priority.INTERACTIVE
    assert set(priorities[1:]) == {Priority.BULK}


async def _until(condition):
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("never happened")
