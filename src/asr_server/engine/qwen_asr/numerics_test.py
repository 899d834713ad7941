"""QUANTIZE and CPU_THREADS in a loaded engine, on the bundled checkpoint."""

import re

import pytest
import torch

from asr_server import demo
from asr_server.engine import cpu
from asr_server.engine.cpu import INT8_FLAGS
from asr_server.engine.feature import Plan
from asr_server.engine.protocol import Utterance
from asr_server.engine.qwen_asr.engine import QwenEngine

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(cpu.flags().isdisjoint(INT8_FLAGS), reason="sums of 8-bit products overflow on this processor"),
]


def _loaded(**values):
    engine = QwenEngine(Plan("qwen", "demo", "cpu", "float32", 4, 0, (), **values))
    engine.load()
    return engine


@pytest.fixture(scope="module")
def int8():
    return _loaded(quantize="int8")


def test_eight_bits_keep_the_words_and_move_the_probabilities(int8, make_engine, run, speech):
    """The plan's option reaches the layers: without it the log-probabilities would be those of float32."""
    (found,) = run(int8, [Utterance(speech)])
    (exact,) = run(make_engine(), [Utterance(speech)])
    assert (found.text, found.language) == (demo.sample().text, "English")
    differences = [abs(a - b) for a, b in zip(found.logprobs, exact.logprobs, strict=True)]
    assert 1e-5 < max(differences) < 0.3


def test_the_engine_says_how_far_its_layers_are_from_theirs(int8):
    """The figure stands in the option of the plan, which `/health` shows: four matrices a layer, and those of the
    encoder."""
    (option,) = (option for option in int8.info.options if option.name == "quantize")
    assert (option.active, option.value) == (True, "int8")
    told = r"the outputs of 31 layers differ by at most [0-3]\.\d% from those of the layers they replace"
    assert re.fullmatch(told, option.reason)


def test_weights_that_eight_bits_replace_are_freed(int8):
    """No linear layer keeps its own weights; embeddings, which are the head too, stay."""
    runtime = int8._runtime
    model, encoder = runtime.decoder.model, runtime._encoder
    kept = [*vars(model).values(), *vars(encoder).values(), *(vars(part) for part in (model, encoder))]
    assert not any(isinstance(one, torch.nn.Linear) for one in kept)
    assert runtime.decoder._head.weight.data_ptr() == model._embedding.data_ptr()


def test_sampling_and_the_probability_of_no_speech_work_in_eight_bits(int8, run, speech, clips):
    """A seed repeats its answer; silence is silence."""
    sampled = [run(int8, [Utterance(speech, temperature=1.5, seed=seed)])[0].ids for seed in (1, 1, 2)]
    assert sampled[0] == sampled[1] != sampled[2]
    heard, silent = run(int8, [Utterance(speech), Utterance(clips[4])])
    assert heard.no_speech_prob < 0.1 < 0.9 < silent.no_speech_prob


def test_the_plans_number_of_threads_is_torchs(run, speech):
    """The planned number of threads computes, not one for each logical CPU of the machine."""
    before = torch.get_num_threads()
    try:
        _loaded(cpu_threads=before + 1)
        assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)
