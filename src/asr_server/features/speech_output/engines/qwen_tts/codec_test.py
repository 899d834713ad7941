"""Samples in parts are those of the whole."""

import pytest
import torch

from asr_server.features.speech_output.engines.qwen_tts.codec import StreamState

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def codec(engine):
    return engine._runtime._parts.codec.decoder, engine._runtime._codec


@pytest.mark.parametrize(
    "parts",
    [
        (7, 1, 30, 2),
        *(pytest.param(parts, marks=pytest.mark.nightly) for parts in [(40,), (1,) * 40, (4, 12, 12, 12)]),
    ],
    ids=str,
)
def test_parts_of_any_length_give_the_samples_of_the_whole(codec, parts):
    """Two streams together. The SDK's own chunks, which begin anew, do not with this window."""
    whole, stream = codec
    codes = torch.randint(2048, (2, 40, 4), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected = whole(codes.transpose(1, 2)).squeeze(1)
        states, found = [StreamState(), StreamState()], []
        for part in codes.split(parts, dim=1):
            samples, states = stream(part, states)
            found.append(samples)
        began_anew = whole.chunked_decode(codes.transpose(1, 2), chunk_size=12, left_context_size=5).squeeze(1)
    assert (torch.cat(found, dim=1) - expected).abs().max() < 1e-4
    assert (began_anew - expected).abs().max() > 1e-2


def test_streams_at_different_places_share_a_pass(codec):
    """One stream is at its beginning, another far on; what a stream keeps does not grow."""
    whole, stream = codec
    codes = torch.randint(2048, (2, 30, 4), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        expected = whole(codes.transpose(1, 2)).squeeze(1)
        _, (ahead,) = stream(codes[:1, :20], [StreamState()])
        samples, states = stream(torch.stack([codes[0, 20:], codes[1, :10]]), [ahead, StreamState()])
    assert (samples[0] - expected[0, 20 * 1920 :]).abs().max() < 1e-4
    assert (samples[1] - expected[1, : 10 * 1920]).abs().max() < 1e-4
    assert {state.nbytes for state in states} == {ahead.nbytes}


def test_a_stream_can_go_on_behind_frames_that_nobody_hears(codec):
    """The samples of those frames are left out where they do not matter any more."""
    whole, stream = codec
    codes = torch.randint(2048, (1, 60, 4), generator=torch.Generator().manual_seed(2))
    with torch.inference_mode():
        expected = whole(codes.transpose(1, 2)).squeeze(1)[:, 50 * 1920 :]
        samples, _ = stream(codes[:, 50:], [stream.primed(codes[0, :50])])
    assert (samples - expected).abs().max() < 1e-4
