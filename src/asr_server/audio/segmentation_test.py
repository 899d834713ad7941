"""Invariants of cutting: order, cover, length, and that neither chunking nor a slow reader changes a span."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from asr_server.audio.segmentation import (
    SegmentationConfig,
    SpanCutter,
    off_threshold,
)
from asr_server.core.audio import FRAME_SAMPLES, SAMPLE_RATE

Frames = NDArray[np.float32]
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
    """Return the spans of a whole clip."""
    cutter = SpanCutter(config)
    return [*cutter.push(probabilities, power), *cutter.finish(total_samples)]


def length_s(span):
    """Return the length in seconds."""
    return (span.end - span.start) / SAMPLE_RATE


def edges(spans):
    """Return where each span begins and ends, in samples."""
    return [(span.start, span.end) for span in spans]


def speech_regions(probabilities, config):
    """Speech by the definition, the slow way: split at every silence that is long enough, drop what is too short."""
    min_silence, min_speech = (int(np.ceil(ms / 32)) for ms in (config.min_silence_ms, config.min_speech_ms))
    found, at, count = [], 0, len(probabilities)
    while at < count:
        if probabilities[at] < config.threshold:
            at += 1
            continue
        end = stop = at + 1
        while stop < count:
            end = next((f for f in range(stop, count) if probabilities[f] < off_threshold(config.threshold)), count)
            again = next(
                (f for f in range(end, min(count, end + min_silence + 1)) if probabilities[f] >= config.threshold), None
            )
            stop = count if again is None else again + 1
            if again is None:
                break
            end = stop
        if end - at >= min_speech:
            found.append((at, end))
        at = min(count, end + min_silence + 1)
    return found


@settings(max_examples=250, deadline=None)
@given(RUNS, st.integers(0, 5))
def test_invariants(runs, seed):
    """Spans are ordered, disjoint, inside the clip and short enough; all speech is in them; no long silence is."""
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
        assert inside[start:end].all()
        speech[start:end] = True
    for span in spans:
        here = np.flatnonzero(speech[span.start // FRAME_SAMPLES : -(-span.end // FRAME_SAMPLES)])
        assert len(here)
        edge_s = max(here[0] * FRAME_S, length_s(span) - (here[-1] + 1) * FRAME_S)
        assert edge_s <= SMALL.pad_ms / 1000 + FRAME_S
        assert np.diff(here).max(initial=0) * FRAME_S <= SMALL.max_gap_s + 2 * SMALL.pad_ms / 1000 + 5 * FRAME_S


@settings(max_examples=150, deadline=None)
@given(RUNS, st.lists(st.integers(0, 90), min_size=1, max_size=20))
def test_chunking_does_not_matter(runs, lots):
    """Fed in any lots, the cutter gives the spans of the whole clip, and a span once given out is never taken back. No
    span begins before what the cutter said was needed, and it never asks for more than a span and a pause."""
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


@settings(max_examples=150, deadline=None)
@given(RUNS)
def test_spans_know_their_speech_regions(runs):
    """The speech_regions of all spans are the speech, cut only where spans are; the peak is the highest probability."""
    probabilities, power, total = clip(runs)
    speech = np.zeros(len(probabilities) + 1, bool)
    for start, end in speech_regions(probabilities, SMALL):
        speech[start:end] = True
    said = np.zeros_like(speech)
    for span in cut(probabilities, power, total, SMALL):
        first, last = span.start // FRAME_SAMPLES, -(-span.end // FRAME_SAMPLES)
        assert span.peak_probability == probabilities[first:last].max()
        assert all(span.start <= a < b <= span.end for a, b in span.speech_regions)
        assert all(one[1] < other[0] for one, other in itertools.pairwise(span.speech_regions))
        for start, end in span.speech_regions:
            said[start // FRAME_SAMPLES : -(-end // FRAME_SAMPLES)] = True
    assert np.array_equal(said, speech)


def test_pads_and_edges():
    """A span is the speech with 300 ms to each side, not the silence beyond."""
    spans = cut(*clip([(0.0, 200), (1.0, 100), (0.0, 200)]), CONFIG)
    assert edges(spans) == [(190 * FRAME_SAMPLES, 310 * FRAME_SAMPLES)]
    assert spans[0].speech_regions == ((200 * FRAME_SAMPLES, 300 * FRAME_SAMPLES),)
    assert length_s(spans[0]) == pytest.approx(3.84)


def test_short_regions_share_a_span():
    """Sentences with short pauses are packed to nearly 30 s, and cut in the pause, not in the sentence."""
    sentence, pause = (1.0, 125), (0.0, 25)  # 4 s and 0.8 s
    spans = cut(*clip([sentence, pause] * 20), CONFIG)
    assert [round(length_s(span)) for span in spans] == [28, 29, 29, 9]
    for one, other in itertools.pairwise(spans):
        assert (one.end // FRAME_SAMPLES) % 150 in range(125, 151)
        assert (other.start // FRAME_SAMPLES) % 150 in range(125, 151)


def test_endless_speech_is_cut_where_it_is_quiet():
    """Speech without a pause is cut at the quietest point between 20 and 30 s, and goes on there without a gap."""
    probabilities, power, total = clip([(1.0, 3_000)])
    power[:] = 0.01
    power[800:806] = 1e-5  # 25.6 s
    power[1_600:1_606] = 1e-5
    probabilities[1_600:1_606] = 0.6
    power[1_300:1_306] = 2e-5  # before the last third of the second span: too early to cut
    spans = cut(probabilities, power, total, CONFIG)
    cuts = [span.end // FRAME_SAMPLES for span in spans[:2]]
    assert 800 <= cuts[0] < 806
    assert 1_600 <= cuts[1] < 1_606
    assert [span.start for span in spans[1:]] == [span.end for span in spans[:-1]]
    assert all(length_s(span) <= 30 for span in spans)


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
