"""The encoder and the aligner as compiled graphs, against torch; and a process that has no torch."""

import numpy as np
import pytest
import torch

from asr_server import demo
from asr_server.engine.conftest import aligned, loaded_aligner
from asr_server.engine.feature import OPENVINO
from asr_server.engine.memory import PrefillPolicy
from asr_server.engine.openvino.library import NumberFormats
from asr_server.engine.protocol import AlignItem
from asr_server.engine.qwen_asr import compiled_model, files, loading
from asr_server.engine.qwen_asr.encoder import WindowedEncoder
from asr_server.engine.qwen_asr.frontend import LogMel

pytestmark = [pytest.mark.torch, pytest.mark.nightly]

# A piece is 100 frames of 160 samples, a window 800.
SAMPLES = (100, 9_000, 16_000, 16_159, 20_000, 128_000, 128_160, 260_077)


@pytest.fixture(scope="module", params=["demo", "released"])
def directory(request):
    return demo.checkpoint_path() if request.param == "demo" else request.getfixturevalue("released_checkpoint")


def _embeddings(encoder, mel, recordings):
    windows = [window for audio in recordings for window in encoder.windows(mel(audio))]
    with torch.inference_mode():
        return [np.asarray(own) for own in encoder(windows)]


def test_embeddings_are_those_of_torch(directory):
    """Clips that are shorter than a piece, whole pieces and windows, and several clips at once."""
    found = files.read(directory)
    _, compiled, _ = compiled_model.graphs(found, NumberFormats(0, False, 0), None, lambda share: None)
    exact = WindowedEncoder(loading.load(directory, device="cpu", dtype=torch.float32).tower)
    chance, mel = np.random.default_rng(1), LogMel(found.mel)
    recordings = [chance.normal(0, 0.1, samples).astype(np.float32) for samples in SAMPLES]
    for some in (*([one] for one in recordings), recordings):
        for got, own in zip(_embeddings(compiled, mel, some), _embeddings(exact, mel, some), strict=True):
            np.testing.assert_allclose(got, own, atol=1e-3, rtol=1e-3)


@pytest.fixture(scope="module")
def compiled():
    return loaded_aligner(runtime=OPENVINO)


@pytest.fixture(scope="module")
def items(clips):
    return [AlignItem(clip, demo.sample().text, "English") for clip in clips[:4]]


def test_times_in_float32_are_those_of_torch(compiled, items):
    """Clips of several windows have them too, alone and together."""
    expected = aligned(loaded_aligner(), items)
    assert aligned(compiled, items) == expected
    assert aligned(compiled, items[2:3]) == expected[2:3]


def test_times_in_eight_bits_are_near(compiled, items):
    """No word of a recording that says the text moves by more than two slots."""
    eight_bits = loaded_aligner(runtime=OPENVINO, quantize="int8")
    (found,), (exact,) = (aligned(aligner, items[:1]) for aligner in (eight_bits, compiled))
    off = [abs(a.start_ms - b.start_ms) for a, b in zip(found.pieces, exact.pieces, strict=True)]
    assert max(off) <= 160


def test_a_long_item_is_aligned_in_parts(compiled, items, monkeypatch):
    """A part is as many tokens as take 0.2 s; other passes of the same aligner may be made between two parts."""
    at_once = aligned(compiled, items)
    monkeypatch.setattr(PrefillPolicy, "tokens", lambda policy, limit_s: 16)
    together, results = aligned(compiled, items), []
    passes = [compiled.align(items[:1]), compiled.align(items[1:2])]
    for _ in range(40):
        results += [next(part, None) for part in passes]
    whole, half = results.index(together[:1]), results.index(together[1:2])
    assert whole > half > 8
    assert together == at_once
