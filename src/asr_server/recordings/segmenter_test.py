"""Speech spans of a recording: their audio."""

import wave
from itertools import pairwise

import numpy as np
import pytest

from asr_server import demo
from asr_server.audio.segmentation import SegmentationConfig, SpeechSpan
from asr_server.engine.protocol import EngineTraits
from asr_server.recordings.requests import ChunkingStrategy, VoiceDetection
from asr_server.recordings.segmenter import Segmenter, SoundLevels, segmentation_config


@pytest.fixture(scope="module")
def recording():
    """The bundled sample twice, with a pause that parts it into two spans: float32 (n,), its peak below 1."""
    with wave.open(str(demo.sample().recording)) as source:
        pcm = np.frombuffer(source.readframes(source.getnframes()), np.int16).astype(np.float32) / 32_768
    return np.concatenate([pcm, np.zeros(4 * 16_000, np.float32), pcm])


def _spans(audio, block=16_000, config=None, vad=VoiceDetection.STRICT):
    segmenter = Segmenter(config or SegmentationConfig(), SoundLevels(), vad)
    spans = [span for at in range(0, len(audio), block) for span in segmenter.push(audio[at : at + block])]
    return [*spans, *segmenter.push(audio[:0], is_last=True)]


def _edges(spans):
    return [(span.start, span.end) for span in spans]


def test_the_end_may_come_with_the_last_samples_or_after_them(recording):
    """A file that is one block has the spans that it has in many, the last up to the end of the file."""
    audio = recording[:30_000]  # in the middle of speech and of a frame
    in_blocks, at_once = _spans(audio), Segmenter(SegmentationConfig(), SoundLevels()).push(audio, is_last=True)
    assert _edges(at_once) == _edges(in_blocks)
    assert at_once[-1].end == len(audio)
    assert at_once[-1].peak_probability == pytest.approx(in_blocks[-1].peak_probability, abs=1e-5)


@pytest.mark.parametrize("gain", [3.0, 1_000.0])
def test_a_span_beyond_full_scale_is_scaled_down_and_not_clipped(recording, gain):
    """As files of floats may be: the engine hears the same wave, with its peak at full scale."""
    spans = _spans(recording * np.float32(gain))
    assert len(spans) == 2
    for span in spans:
        wanted = recording[span.start : span.end]
        assert np.abs(span.audio).max() == 1.0
        assert np.allclose(span.audio, wanted / np.abs(wanted).max(), atol=1e-5)


def test_margins_of_a_callers_own_detection_do_not_overlap(recording):
    """However long the caller wants them, every pause of the length that it states separates two segments."""
    said = [np.zeros(8_000, np.float32), recording[: (len(recording) - 4 * 16_000) // 2]]
    stated = ChunkingStrategy("server_vad", prefix_padding_ms=3_000, silence_duration_ms=200)
    spans = _spans(np.concatenate(said * 3), config=segmentation_config(stated, EngineTraits()))
    assert len(spans) >= 3
    assert all(before.end <= after.start for before, after in pairwise(spans))


def test_an_engine_gets_spans_that_it_can_hear():
    """As long as it can, with the pauses and margins that it likes; never longer than the server's own."""
    own = SegmentationConfig()
    short = segmentation_config(ChunkingStrategy(), EngineTraits(max_audio_s=12.0, max_pause_s=0.5, margin_ms=100))
    assert (short.max_span_s, short.max_gap_s, short.pad_ms) == (12.0, 0.5, 100)
    assert segmentation_config(ChunkingStrategy(), EngineTraits(max_audio_s=120.0)).max_span_s == own.max_span_s
    stated = ChunkingStrategy("server_vad", threshold=0.7, prefix_padding_ms=150, silence_duration_ms=700)
    found = segmentation_config(stated, EngineTraits(max_audio_s=12.0))
    assert (found.max_span_s, found.threshold, found.min_silence_ms, found.pad_ms) == (12.0, 0.7, 700, 150)
    longest = ChunkingStrategy("server_vad", prefix_padding_ms=2_000, silence_duration_ms=5_000)
    found = segmentation_config(longest, EngineTraits(max_audio_s=20.0))  # as Moonshine
    assert (found.min_silence_ms, found.pad_ms) == (5_000, 623)


def test_a_part_of_a_span_has_the_speech_in_it():
    """Cut where the part begins and ends, and none of what only touches it."""
    regions = ((100, 200), (300, 500), (600, 700))
    span = SpeechSpan(0, 1_000, np.arange(1_000, dtype=np.float32), 0.9, regions, "A")
    part = span.part(200, 400)
    assert (part.start, part.end, part.speech_regions, part.speaker) == (200, 400, ((300, 400),), "A")
    assert part.audio.tolist() == list(range(200, 400))
    assert span.part(500, 600).speech_regions == ()


def test_a_quiet_passage_after_a_loud_one_is_heard_as_quiet():
    """The scale of a file beyond full scale is that of its loudest sample so far."""
    levels, loud = SoundLevels(), np.full(128 * 512, 8.0, np.float32)
    Segmenter(SegmentationConfig(), levels).push(np.concatenate((loud, loud / 8)), is_last=True)
    peaks = levels.peaks()
    assert (len(peaks), peaks[0], peaks[-1]) == (600, 1.0, pytest.approx(1 / 8, rel=0.06))


@pytest.fixture(scope="module")
def with_noise(recording):
    """6 s of noise as loud as speech, the recording, 5 s of a quiet room, and 50 s of the noise."""
    rng = np.random.default_rng(0)
    before, after, room = (rng.normal(0, level, 16_000 * s) for level, s in ((0.1, 6), (0.1, 50), (0.001, 5)))
    return np.concatenate([before, recording, room, after]).astype(np.float32)


def test_with_advise_loud_pauses_are_spans_of_their_own(with_noise):
    """The spans of speech are as without it. All are disjoint, in order, and as long as the engine takes at most."""
    spans = _spans(with_noise, vad=VoiceDetection.ADVISE)
    assert _edges(span for span in spans if not span.is_doubtful) == _edges(_spans(with_noise))
    doubtful = [span for span in spans if span.is_doubtful]
    assert sum(span.end - span.start for span in doubtful) == pytest.approx(56 * 16_000, abs=3 * 16_000)
    assert all(span.end - span.start <= 30 * 16_000 for span in spans)
    assert all(before.end <= after.start for before, after in pairwise(spans))
    assert all(span.peak_probability < 0.5 for span in doubtful)
    for span in spans:
        assert np.array_equal(span.audio, with_noise[span.start : span.end])


@pytest.mark.parametrize("vad", VoiceDetection)
def test_how_samples_are_divided_does_not_matter(recording, vad):
    """The spans do not depend on the blocks, also where a noise is loud until speech is known that is louder."""
    noise = np.random.default_rng(0).normal(0, 0.005, 16_000 * 35).astype(np.float32)  # more than a span may have
    audio = np.concatenate([noise, recording, noise[: 16_000 * 5]])
    at_once = Segmenter(SegmentationConfig(), SoundLevels(), vad).push(audio, is_last=True)
    assert _edges(at_once) == _edges(_spans(audio, 1_000, vad=vad)) == _edges(_spans(audio, 777_777, vad=vad))
    if vad is VoiceDetection.ADVISE:
        doubtful = [span for span in at_once if span.is_doubtful]
        assert doubtful
        assert all(span.end <= len(noise) for span in doubtful)


def test_without_the_detector_every_sample_is_in_a_span(with_noise):
    """The spans are cut as if all were speech, and their probability is that of the detector."""
    spans = _spans(with_noise, vad=VoiceDetection.OFF)
    assert [span.start for span in spans] == [0, *(span.end for span in spans[:-1])]
    assert spans[-1].end == len(with_noise)
    assert spans[-1].peak_probability < 0.5 < spans[0].peak_probability
