"""Invariants of cutting: order, cover, length, and that neither chunking nor a slow reader changes a span."""

import bisect
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asr_server.audio.segmentation import MIN_SPEECH_MS, SegmentationConfig, SpanCutter, off_threshold
from asr_server.core.audio import FRAME_SAMPLES, SAMPLE_RATE

CONFIG = SegmentationConfig()
SMALL = SegmentationConfig(max_span_s=6.0, max_gap_s=1.0)
FRAME_S = FRAME_SAMPLES / SAMPLE_RATE

# Runs of frames at one probability: pauses and speech of all lengths, flicker between the thresholds, single frames.
RUNS = st.lists(
    st.tuples(st.sampled_from([0.0, 0.2, 0.34, 0.36, 0.45, 0.5, 0.7, 1.0]), st.integers(1, 120) | st.integers(1, 6)),
    max_size=40,
)


def clip(runs, seed=0):
    """Probabilities, power and length in samples (the last frame partly filled)."""
    probabilities = np.concatenate([np.full(count, p, np.float32) for p, count in runs] or [np.zeros(0, np.float32)])
    power = np.random.default_rng(seed).exponential(0.01, len(probabilities)).astype(np.float32)
    return probabilities, power, max(0, len(probabilities) * FRAME_SAMPLES - 100)


def cut(probabilities, power, total_samples, config):
    cutter = SpanCutter(config)
    return [*cutter.push(probabilities, power), *cutter.finish(total_samples)]


def length_s(span):
    return (span.end - span.start) / SAMPLE_RATE


def speech_regions(probabilities, config):
    """Speech by the definition: a pause that is long enough ends it, and it is dropped if it is too short."""
    min_silence, min_speech = (int(np.ceil(ms / 32)) for ms in (config.min_silence_ms, MIN_SPEECH_MS))
    count = len(probabilities)
    voiced = [*np.flatnonzero(probabilities >= config.threshold), count + min_silence + 1]
    below = [*np.flatnonzero(probabilities < off_threshold(config.threshold)), count]
    found, start = [], voiced[0]
    for at, after in itertools.pairwise(voiced):
        end = below[bisect.bisect(below, at)]
        if after - end > min_silence:
            found.append((start, end))
            start = after
    return [(start, end) for start, end in found if end - start >= min_speech]


@settings(max_examples=250, deadline=None)
@given(RUNS, st.integers(0, 5))
def test_invariants(runs, seed):
    """Spans are ordered, disjoint, inside the clip and short enough; all speech is in them; no long silence is. Their
    speech regions are the speech, cut only where spans are. The peak is the highest probability."""
    probabilities, power, total = clip(runs, seed)
    spans = cut(probabilities, power, total, SMALL)
    inside = np.zeros(len(probabilities), np.int32)
    for span in spans:
        assert 0 <= span.start < span.end <= total
        assert length_s(span) <= SMALL.max_span_s
        inside[span.start // FRAME_SAMPLES : -(-span.end // FRAME_SAMPLES)] += 1
    assert all(one.end <= other.start for one, other in itertools.pairwise(spans))
    assert inside.max(initial=0) <= 1
    speech = np.zeros(len(probabilities), bool)
    for start, end in speech_regions(probabilities, SMALL):
        speech[start:end] = True
    said = np.zeros_like(speech)
    for span in spans:
        first, last = span.start // FRAME_SAMPLES, -(-span.end // FRAME_SAMPLES)
        assert span.peak_probability == probabilities[first:last].max()
        assert all(span.start <= a < b <= span.end for a, b in span.speech_regions)
        assert all(one[1] < other[0] for one, other in itertools.pairwise(span.speech_regions))
        for start, end in span.speech_regions:
            said[start // FRAME_SAMPLES : -(-end // FRAME_SAMPLES)] = True
        here = np.flatnonzero(speech[first:last])
        assert len(here)
        edge_s = max(here[0] * FRAME_S, length_s(span) - (here[-1] + 1) * FRAME_S)
        assert edge_s <= SMALL.pad_ms / 1000 + FRAME_S
        assert np.diff(here).max(initial=0) * FRAME_S <= SMALL.max_gap_s + 2 * SMALL.pad_ms / 1000 + 5 * FRAME_S
    assert np.array_equal(said, speech)


@settings(max_examples=150, deadline=None)
@given(RUNS, st.lists(st.integers(0, 90), min_size=1, max_size=20))
def test_chunking_does_not_matter(runs, lots):
    """Any lots give the same spans, which need no more audio than the cutter asks for: a span and a pause."""
    probabilities, power, total = clip(runs)
    cutter, spans, at, needed = SpanCutter(SMALL), [], 0, 0
    for lot in [*lots, len(probabilities)]:
        found = cutter.push(probabilities[at : at + lot], power[at : at + lot])
        at = min(at + lot, len(probabilities))
        assert all(span.start >= needed for span in found)
        assert cutter.needed_from >= needed
        needed = cutter.needed_from
        assert at * FRAME_SAMPLES - needed <= 9.5 * SAMPLE_RATE
        spans += found
    last = cutter.finish(total)
    assert all(span.start >= needed for span in last)
    assert [*spans, *last] == cut(probabilities, power, total, SMALL)


def test_pads_and_edges():
    """A span is the speech with 300 ms to each side, not the silence beyond."""
    (span,) = cut(*clip([(0.0, 200), (1.0, 100), (0.0, 200)]), CONFIG)
    assert (span.start, span.end) == (190 * FRAME_SAMPLES, 310 * FRAME_SAMPLES)
    assert span.speech_regions == ((200 * FRAME_SAMPLES, 300 * FRAME_SAMPLES),)


def test_short_regions_share_a_span():
    """Sentences with short pauses are packed to nearly 30 s, and cut in the pause, not in the sentence."""
    spans = cut(*clip([(1.0, 125), (0.0, 25)] * 20), CONFIG)  # 4 s and 0.8 s
    assert [round(length_s(span)) for span in spans] == [28, 29, 29, 9]
    assert all((span.end // FRAME_SAMPLES) % 150 in range(125, 151) for span in spans)


def test_endless_speech_is_cut_where_it_is_quiet():
    probabilities, power, total = clip([(1.0, 1_500)])
    power[:] = 0.01
    power[800:806] = 1e-5  # 25.6 s
    first, second = cut(probabilities, power, total, CONFIG)
    assert 800 <= first.end // FRAME_SAMPLES < 806
    assert first.end == second.start


def test_no_span_is_longer_than_30_s():
    """Speech that grows quieter for ever is quietest at the very end of each span: it is cut there, and not later."""
    probabilities, power, total = clip([(1.0, 3_000)])
    power[:] = np.geomspace(1.0, 1e-6, len(power))
    spans = cut(probabilities, power, total, CONFIG)
    assert all(length_s(span) <= 30.0 for span in spans)
    assert all(length_s(span) > 29.5 for span in spans[:-1])


@pytest.mark.parametrize("wrong", [{"threshold": -0.1}, {"threshold": 1.1}, {"pad_ms": 600}, {"max_span_s": 3.0}])
def test_contradictions_are_refused(wrong):
    with pytest.raises(ValueError, match=r"must|too short"):
        SegmentationConfig(**wrong)  # type: ignore[arg-type] # the point is a wrong value
