"""Recordings of several channels through the pipeline, with the scripted engine of `pipeline_test`."""

from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

from asr_server.audio.conftest import pcm16, wav
from asr_server.audio.segmentation import SegmentationConfig
from asr_server.core.audio import SAMPLE_RATE
from asr_server.engine.protocol import Finish
from asr_server.features.speakers.diarization.turns import Diarization, Turn
from asr_server.features.speakers.recording_speakers import speaker_step
from asr_server.features.speakers.voices import EnrolledVoice, VoiceStore
from asr_server.features.stereo.channels import ChannelSegmenter, channel_signal
from asr_server.features.stereo.similarity import ChannelComparison
from asr_server.recordings.pipeline import RecordingPipeline, RunOptions, SegmentLabelled
from asr_server.recordings.pipeline_test import Made
from asr_server.recordings.requests import ChannelMode, TranscriptionRequest, VoiceDetection
from asr_server.recordings.segmenter import Segmenter, SoundLevels
from E2Etest.channels import conversation, people, with_crosstalk
from E2Etest.drive.recordings import real_clips, waveform

CONFIG = SegmentationConfig()


def _spans(track, block=SAMPLE_RATE):
    segmenter = ChannelSegmenter(CONFIG, SoundLevels(), VoiceDetection.STRICT, findings=_findings(track))
    pieces = [segmenter.push(track[:, at : at + block]) for at in range(0, track.shape[1], block)]
    return [span for piece in [*pieces, segmenter.push(track[:, :0], is_last=True)] for span in piece]


def _alone(channel):
    segmenter = Segmenter(CONFIG, SoundLevels())
    return [region for span in segmenter.push(channel, is_last=True) for region in span.speech_regions]


def _regions(spans, speaker):
    return [region for span in spans if span.speaker == speaker for region in span.speech_regions]


@pytest.fixture(scope="module")
def long_call():
    """Two people in turns of 3 to 21 s, which overlap by a second."""
    return conversation(people("librivox", "phone"), pause_s=-1.0)


def test_spans_are_in_order_and_each_channel_has_its_own_speech(long_call):
    """All that a channel has alone, sample for sample, also where both speak."""
    spans = _spans(long_call)
    starts = [span.start for span in spans]
    assert starts == sorted(starts)
    assert any(a.end > b.start and a.speaker != b.speaker for a, b in pairwise(spans))
    for channel, speaker in enumerate("AB"):
        assert _regions(spans, speaker) == _alone(long_call[channel])
        for span in spans:
            if span.speaker == speaker:
                assert np.array_equal(span.audio, long_call[channel, span.start : span.end])


def test_a_span_ends_where_another_has_a_turn():
    """Also at a pause that would be too short to end it otherwise; no sample of the speech is lost."""
    speakers = people("digits_jackson_0", "digits_jackson_1", "goforward")
    first, second, reply = (waveform(clip.path) for (clip,) in speakers)
    reply, pause = reply[SAMPLE_RATE : 2 * SAMPLE_RATE], np.zeros(SAMPLE_RATE // 2, np.float32)
    one = np.concatenate([first, pause, 0 * reply, pause, second])
    other = np.concatenate([0 * first, pause, reply, pause, 0 * second])
    whole, turns = _spans(np.stack([one, 0 * other])), _spans(np.stack([one, other]))
    assert [span.speaker for span in whole] == ["A"]
    assert [span.speaker for span in turns] == ["A", "B", "A"]
    assert _regions(turns, "A") == _regions(whole, "A")


@pytest.fixture(scope="module")
def crosstalk(long_call):
    """The call where each channel also has the other, 20 dB fainter, and its spans."""
    track = with_crosstalk(long_call, -20)
    return track, _spans(track)


def test_crosstalk_is_nobodys_speech(long_call, crosstalk):
    """The voice of the other begins no span, and divides none."""
    for a, b in zip(_spans(long_call), crosstalk[1], strict=True):
        assert (a.speaker, len(a.speech_regions)) == (b.speaker, len(b.speech_regions))
        assert abs(a.start - b.start) < SAMPLE_RATE // 2
        assert abs(a.end - b.end) < SAMPLE_RATE // 2


def test_how_it_is_fed_in_changes_nothing(crosstalk):
    """Spans are those of the recording, however it is divided into blocks."""
    track, expected = crosstalk
    found = _spans(track, 5_000)
    assert [(one.start, one.end, one.speaker) for one in found] == [(o.start, o.end, o.speaker) for o in expected]
    assert all(np.array_equal(a.audio, b.audio) for a, b in zip(found, expected, strict=True))


def test_what_is_held_does_not_grow(long_call):
    """A turn is returned while the conversation goes on, at most the longest span behind."""
    track = np.tile(long_call, 2)
    segmenter = ChannelSegmenter(CONFIG, SoundLevels(), VoiceDetection.STRICT, findings=_findings(long_call))
    for at in range(0, track.shape[1], SAMPLE_RATE):
        for span in segmenter.push(track[:, at : at + SAMPLE_RATE]):
            assert at + SAMPLE_RATE - span.end < 2 * CONFIG.max_span_s * SAMPLE_RATE


def _findings(track):
    comparison = ChannelComparison(len(track))
    comparison.push(track)
    return comparison.findings()


@pytest.fixture
async def made():
    made = Made(lambda samples: Finish.END, split_signal=channel_signal)
    yield made
    await made.close()


@pytest.fixture(scope="module")
def call():
    """Two people whose turns overlap."""
    return conversation(people("digits_george", "digits_jackson"), pause_s=-1.0)


async def _transcribe(made, track, options=None, **more):
    made.events.clear()
    request = TranscriptionRequest(channel_mode=ChannelMode.SPLIT, **more)
    with wav(pcm16(np.clip(track, -1, 1)), channels=len(track)) as file:
        return await made.transcribe(file, request, options or RunOptions())


@pytest.mark.slow("detects speech in two channels of real conversations")
async def test_a_channel_whose_voice_is_known_has_its_name(made, call, tmp_path):
    """A stored voice, on segments and words; the other keeps the letter of its channel."""
    client, store, heard = SimpleNamespace(voice_model="loudness"), VoiceStore(tmp_path), []

    async def diarize(samples, count=None):
        heard.append(len(samples) / SAMPLE_RATE)
        return Diarization((Turn(0, 0, 2_000),), (np.eye(2, dtype=np.float32)[int(np.abs(samples).max() > 0.2)],))

    client.diarize = diarize
    steps = {"speakers": speaker_step(client, made.decoder, store)}
    made.pipeline = RecordingPipeline(replace(made.resources, steps=steps))
    loud = np.eye(2, dtype=np.float32)[1]
    store.put("owner", EnrolledVoice(name="Ann", voice_print=loud, model=client.voice_model, consent="a test"))
    loud_and_quiet = np.stack([call[0] / np.abs(call[0]).max(), 0.1 * call[1] / np.abs(call[1]).max()])
    wish = {"speakers": True, "return_timestamps": True}
    transcript = await _transcribe(made, loud_and_quiet, RunOptions(owner="owner"), **wish)
    assert {segment.speaker for segment in transcript.segments} == {"Ann", "B"}
    assert all(word.speaker == segment.speaker for segment in transcript.segments for word in segment.words)
    labelled = [event.segment for event in made.events if isinstance(event, SegmentLabelled)]
    assert labelled == list(transcript.segments)
    assert heard == [pytest.approx(12), pytest.approx(12)]


async def test_languages_are_those_of_their_speakers(made):
    """A short segment is compared with what the same person said: an interpreter's call has two main languages."""
    long, short = (waveform(clip.path) for clip in real_clips("jfk", "digits_nicolas_0"))
    pause = np.zeros(3 * SAMPLE_RATE, np.float32)
    one = np.concatenate([long, 0 * short, pause, 0 * short, pause])
    other = np.concatenate([0 * long, short, pause, short, pause])
    made.batch.language = lambda samples: "English" if samples > 80_000 else "Chinese"
    transcript = await _transcribe(made, np.stack([one, other]))
    assert {(one.speaker, one.language) for one in transcript.segments} == {("A", "English"), ("B", "Chinese")}
    assert len(made.batch.seen) == len(transcript.segments)


@pytest.mark.slow("detects speech in two channels of real conversations")
async def test_speech_at_the_same_time_is_more_work(made):
    """Admission counts the seconds of speech of all channels, but no recording for less than its length."""
    jfk, librivox = (np.resize(waveform(clip.path), 20 * SAMPLE_RATE) for clip in real_clips("jfk", "librivox_0870"))
    both, turns = np.stack([jfk, librivox]), conversation(people("digits_george", "digits_jackson"))
    for track, work in ((both, 1.19), (turns, 1.0)):
        with wav(pcm16(track), channels=2) as file:
            assert (await channel_signal(made.decoder, file, "")).work == pytest.approx(work, abs=0.05)
        before_s = made.registry.get_sample_value("asr_recording_audio_seconds_total")
        await _transcribe(made, track)
        answered_s = made.registry.get_sample_value("asr_recording_audio_seconds_total") - before_s
        assert answered_s == pytest.approx(work * track.shape[1] / SAMPLE_RATE, abs=1)
        assert made.admission.held_s == 0


async def test_a_long_call_is_not_read_twice(made, call):
    track = np.tile(call, 6)
    with wav(pcm16(np.clip(track, -1, 1)), channels=2) as file:
        signal = await channel_signal(made.decoder, file, "")
    assert signal.is_split
    assert made.registry.get_sample_value("asr_decoded_audio_seconds_total") < track.shape[1] / SAMPLE_RATE / 2
