"""How the channels of a conversation are cut into turns."""

from itertools import pairwise

import numpy as np
import pytest

from asr_server.audio.segmentation import SegmentationConfig
from asr_server.core.audio import SAMPLE_RATE
from asr_server.features.stereo.channel_segmenter import ChannelSegmenter
from asr_server.features.stereo.similarity import ChannelComparison
from asr_server.recordings.segmenter import Segmenter
from E2Etest.channels import conversation, people, with_crosstalk
from E2Etest.recordings import waveform

CONFIG = SegmentationConfig()


def _spans(track, block=SAMPLE_RATE):
    comparison = ChannelComparison(len(track))
    comparison.push(track)
    segmenter = ChannelSegmenter(CONFIG, comparison.findings())
    pieces = [segmenter.push(track[:, at : at + block]) for at in range(0, track.shape[1], block)]
    return [span for piece in [*pieces, segmenter.finish()] for span in piece]


def _alone(channel):
    """The speech of a channel by itself."""
    segmenter = Segmenter(CONFIG)
    return [region for span in [*segmenter.push(channel), *segmenter.finish()] for region in span.speech_regions]


def _regions(spans, speaker):
    return [region for span in spans if span.speaker == speaker for region in span.speech_regions]


@pytest.fixture(scope="module")
def call():
    """Two people in turns of 3 to 21 s, which overlap by a second."""
    return conversation(people("librivox", "phone"), pause_s=-1.0)


def test_spans_are_in_order_and_each_channel_has_its_own_speech(call):
    """All that a channel has alone, sample for sample, also where both speak."""
    spans = _spans(call)
    starts = [span.start for span in spans]
    assert starts == sorted(starts)
    assert any(a.end > b.start and a.speaker != b.speaker for a, b in pairwise(spans))
    for channel, speaker in enumerate("AB"):
        assert _regions(spans, speaker) == _alone(call[channel])
        for span in spans:
            if span.speaker == speaker:
                assert np.array_equal(span.audio, call[channel, span.start : span.end])


def test_a_span_ends_where_another_has_a_turn():
    """Also at a pause that would be too short to end it otherwise; no sample of the speech is lost."""
    first, second, reply = (
        waveform(clip.path) for (clip,) in people("digits_jackson_0", "digits_jackson_1", "goforward")
    )
    pause = np.zeros(SAMPLE_RATE // 2, np.float32)
    one = np.concatenate([first, pause, 0 * reply[:SAMPLE_RATE], pause, second])
    other = np.concatenate([0 * first, pause, reply[SAMPLE_RATE : 2 * SAMPLE_RATE], pause, 0 * second])
    whole, turns = _spans(np.stack([one, 0 * other])), _spans(np.stack([one, other]))
    assert [span.speaker for span in whole] == ["A"]
    assert [span.speaker for span in turns] == ["A", "B", "A"]
    assert _regions(turns, "A") == _regions(whole, "A")


def test_crosstalk_is_nobodys_speech(call):
    """The voice of the other, 20 dB fainter, begins no span, and divides none."""
    clean, faint = _spans(call), _spans(with_crosstalk(call, -20))
    assert [(span.speaker, len(span.speech_regions)) for span in faint] == [
        (span.speaker, len(span.speech_regions)) for span in clean
    ]
    for a, b in zip(clean, faint, strict=True):
        assert abs(a.start - b.start) < SAMPLE_RATE // 2
        assert abs(a.end - b.end) < SAMPLE_RATE // 2


@pytest.mark.parametrize("block", [5_000, *(pytest.param(block, marks=pytest.mark.nightly) for block in (300, 10**9))])
def test_how_it_is_fed_in_changes_nothing(call, block):
    """Spans are those of the recording, however it is divided into blocks."""
    track = with_crosstalk(call, -20)
    expected, found = _spans(track), _spans(track, block)
    assert [(one.start, one.end, one.speaker) for one in found] == [
        (one.start, one.end, one.speaker) for one in expected
    ]
    assert all(np.array_equal(a.audio, b.audio) for a, b in zip(found, expected, strict=True))


def test_what_is_held_does_not_grow(call):
    """A turn is returned while the conversation goes on, at most the longest span behind."""
    track = np.tile(call, 3)
    segmenter = ChannelSegmenter(CONFIG, _findings(call))
    for at in range(0, track.shape[1], SAMPLE_RATE):
        for span in segmenter.push(track[:, at : at + SAMPLE_RATE]):
            assert at + SAMPLE_RATE - span.end < 2 * CONFIG.max_span_s * SAMPLE_RATE


def _findings(track):
    comparison = ChannelComparison(len(track))
    comparison.push(track)
    return comparison.findings()
