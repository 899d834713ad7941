"""Rows in pages over a compiled graph, on the bundled checkpoint and on a random one of the released layout."""

import os
import random
import re
import shutil
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from asr_server import demo
from asr_server.core.audio import SAMPLE_RATE
from asr_server.core.errors import EngineOutOfMemory, ModelUnavailable
from asr_server.engine.feature import OPENVINO, TORCH, Plan
from asr_server.engine.openvino import few_bits
from asr_server.engine.openvino.compiled_text import PAGE, PageSpan
from asr_server.engine.openvino.library import NumberFormats
from asr_server.engine.protocol import Utterance
from asr_server.engine.qwen_asr import compiled_model, files
from asr_server.engine.qwen_asr.engine import QwenEngine
from tools.checkpoints.recogniser import random_checkpoint

pytestmark = [pytest.mark.torch, pytest.mark.nightly]


def _loaded(model_id="demo", runtime=OPENVINO, rows=4, kv_budget_mb=0, **values):
    engine = QwenEngine(
        Plan("qwen", str(model_id), "cpu", "float32", rows, kv_budget_mb, (), runtime=runtime, **values)
    )
    engine.load()
    return engine


def test_ids_in_float32_are_those_of_torch(run, make_engine, clips):
    """Both find the same ids for one row and many, and log-probabilities that rounding alone tells apart."""
    utterances = [Utterance(clip) for clip in clips]
    expected = run(_loaded(runtime=TORCH, rows=1), utterances)
    for engine in (make_engine(1), make_engine(8)):
        assert engine._plan.runtime == OPENVINO
        for got, own in zip(run(engine, utterances), expected, strict=True):
            assert got.ids == own.ids
            assert got.logprobs == pytest.approx(own.logprobs, abs=1e-4)
            assert got.no_speech_prob == pytest.approx(own.no_speech_prob, abs=1e-4)


def test_the_released_layout_computes_what_torch_does(run, speech, monkeypatch):
    """Heads of another size than the hidden states divided among them, and weights in bfloat16."""
    monkeypatch.setattr("asr_server.engine.qwen_asr.engine.token_budget", lambda samples: 12)
    checkpoint = random_checkpoint("small")
    found = [run(_loaded(checkpoint, runtime), [Utterance(speech)])[0] for runtime in (OPENVINO, TORCH)]
    assert found[0].ids == found[1].ids
    assert found[0].logprobs == pytest.approx(found[1].logprobs, abs=1e-3)


def test_rows_that_grow_take_pages_and_give_them_back(run, make_engine, clips, alone, monkeypatch):
    """A row that is expected to say one token gets the ids that it has alone; afterwards all pages are free."""
    monkeypatch.setattr("asr_server.engine.qwen_asr.runtime.expected_tokens", lambda samples: 1)
    engine = make_engine(8)
    pages = engine._runtime.decoder.pages
    free, least = len(pages.free), []

    def step(original=engine._runtime.step, **given):
        original(**given)
        least.append(len(pages.free))

    monkeypatch.setattr(engine._runtime, "step", step)
    drafted = [Utterance(clip, draft=(*answer.ids[:3], 1)) for clip, answer in zip(clips, alone, strict=True)]
    for got, expected in zip(run(engine, drafted), alone, strict=True):
        assert got.ids == expected.ids
    assert min(least) < max(least)
    assert sorted(pages.free) == list(range(free))


def test_rows_use_the_pages_of_those_before_them(run, clips):
    """A page takes memory from its first use on: the same rows again and again write to no other pages."""
    engine = _loaded(rows=1)
    used = []
    for _ in range(3):
        run(engine, [Utterance(clip) for clip in clips])
        arrays = engine._runtime.decoder.pages._arrays.values()
        used.append(np.any([array.any(axis=1) for array in arrays], axis=0))
    assert np.array_equal(used[2], used[0])


def test_who_finds_no_page_to_grow_begins_again_later(run, clips, monkeypatch):
    """Two rows that fit with what is expected of them, and not with what they say."""
    two = [Utterance(clips[3][: int(14.5 * SAMPLE_RATE)]), Utterance(clips[3][8000 : int(15 * SAMPLE_RATE)])]
    engine = _loaded(rows=2)
    expected = [run(engine, [utterance])[0] for utterance in two]
    needed = [-(-(e.prompt_tokens + e.audio_tokens + len(e.ids)) // PAGE) for e in expected]
    begun = [-(-(e.prompt_tokens + e.audio_tokens + 1) // PAGE) for e in expected]
    assert sum(begun) < sum(needed)
    monkeypatch.setattr("asr_server.engine.qwen_asr.runtime.expected_tokens", lambda samples: 1)
    monkeypatch.setattr("asr_server.engine.qwen_asr.rows._GROWTH", 0)
    pages, restarts, back_off = engine._runtime.decoder.pages, [], engine._back_off
    spared = pages.take(len(pages.free) - sum(needed) + 1)
    monkeypatch.setattr(engine, "_back_off", lambda failure: restarts.append(failure) or back_off(failure))
    assert [answer.ids for answer in run(engine, two)] == [answer.ids for answer in expected]
    assert restarts
    pages.give(spared)


def test_numbers_that_are_none_leave_no_trace_in_a_page(run, clips, alone):
    """A row with damaged keys and values leaves zeros in its pages, and the next row gets the ids that it has alone."""
    engine = _loaded(rows=1, kv_budget_mb=32)  # all pages are written below, and without a budget they are gigabytes
    engine.admit(0, Utterance(clips[3]))
    while not engine._runtime.decoder.decoding:
        list(engine.step())
    pages = engine._runtime.decoder.pages
    for array in pages._arrays.values():
        array.view(np.float32)[:] = np.nan
    list(engine.step())
    used = engine._runtime.decoder.rows[0].pages
    engine.drop(0)
    # The kernels for AVX2 do not look behind the end of a row, so the ids alone would not show what is left there.
    assert all(not array[used].any() for array in pages._arrays.values())
    (row,) = run(engine, [Utterance(clips[0])])
    assert row.ids == alone[0].ids


def test_sampling_repeats_by_its_seed(run, make_engine, speech):
    """A seed repeats its answer, another one has another."""
    engine = make_engine(8)
    sampled = [run(engine, [Utterance(speech, temperature=1.5, seed=seed)])[0].ids for seed in (1, 1, 2)]
    assert sampled[0] == sampled[1] != sampled[2]


@pytest.fixture(scope="module")
def state_dir(tmp_path_factory):
    """Return a directory in which a load has left its matrices."""
    return tmp_path_factory.mktemp("state")


def _telling(state_dir):
    """Return an engine with matrices in 8 bits, and the shares of them that it told while it was loaded."""
    plan = Plan("qwen", "demo", "cpu", "float32", 4, 0, (), runtime=OPENVINO, quantize="int8", state_dir=state_dir)
    engine, told = QwenEngine(plan), list[float]()
    engine._on_load_progress = lambda: told.append(engine.info.converted)
    engine.load()
    return engine, told


@pytest.fixture(scope="module")
def first_load(state_dir):
    """Return what `_telling` does of the load that makes the matrices."""
    return _telling(state_dir)


@pytest.fixture(scope="module")
def eight_bit_engine(first_load):
    """Return an engine with matrices in 8 bits."""
    return first_load[0]


def test_words_stay_and_probabilities_move(eight_bit_engine, make_engine, run, speech):
    """The option reaches the graph: without it the log-probabilities would be those of float32."""
    (found,) = run(eight_bit_engine, [Utterance(speech)])
    (exact,) = run(make_engine(), [Utterance(speech)])
    assert (found.text, found.language) == (demo.sample().text, "English")
    differences = [abs(a - b) for a, b in zip(found.logprobs, exact.logprobs, strict=True)]
    assert 1e-5 < max(differences) < 0.3


def test_silence_is_silence_in_eight_bits(eight_bit_engine, run, speech, clips):
    """The probability of no speech is computed from the same logits."""
    heard, silent = run(eight_bit_engine, [Utterance(speech), Utterance(clips[4])])
    assert heard.no_speech_prob < 0.1 < 0.9 < silent.no_speech_prob


def test_the_largest_difference_is_told(eight_bit_engine):
    """The figure covers four matrices a layer, the head, and three more of the encoder."""
    config = files.read(demo.checkpoint_path()).thinker
    count = 4 * (config["text_config"]["num_hidden_layers"] + config["audio_config"]["encoder_layers"]) + 4
    (option,) = (option for option in eight_bit_engine.info.options if option.name == "quantize")
    assert (option.active, option.value) == (True, "int8")
    assert option.reason.startswith(f"the outputs of {count} layers differ by at most ")


def test_the_next_load_maps_what_was_kept(eight_bit_engine, state_dir, run, speech, monkeypatch):
    """A second load converts nothing, and gives the same log-probabilities."""
    monkeypatch.setattr("asr_server.engine.openvino.few_bits.integers", None)
    again = _loaded(quantize="int8", state_dir=state_dir)
    assert again.info.options == eight_bit_engine.info.options
    found = [run(one, [Utterance(speech)])[0].logprobs for one in (eight_bit_engine, again)]
    assert found[0] == found[1]


def test_keys_and_values_take_a_quarter(eight_bit_engine, make_engine):
    """Keys and values are in 8 bits too, with scales of their own."""
    sizes = [one._runtime.decoder.model.page_bytes for one in (eight_bit_engine, make_engine())]
    assert sizes[0] < 0.4 * sizes[1]


def test_the_largest_logits_are_those_of_the_heads_own_weights(eight_bit_engine):
    """The likeliest token and its logit, and a sum of exponentials that they are part of."""
    model = eight_bit_engine._runtime.decoder.model
    pages = eight_bit_engine._runtime.decoder.pages.take(1)
    following = model(model.embed([5, 6, 7]), [PageSpan(pages, 0, 3)], [0, 2])
    exact = model._request.get_output_tensor(3).data @ model._head.floats().T
    assert following.tokens.tolist() == exact.argmax(-1).tolist()
    for row, token in enumerate(following.tokens):
        assert following.logits[row, token] == pytest.approx(float(exact[row, token]), abs=1e-4)
    lse = np.log(np.exp(following.logits).sum(-1))
    assert following.lse.tolist() == pytest.approx(lse.tolist(), abs=1e-4)
    eight_bit_engine._runtime.decoder.pages.give(pages)


@pytest.mark.timeout(900)
def test_passes_of_ever_other_lengths_take_no_more_memory():
    """Kernels are made for each number of tokens; those of lengths that do not come again are dropped."""
    engine, chance, held_mb = _loaded(quantize="int8", rows=8), random.Random(1), []
    model, pages = engine._runtime.decoder.model, engine._runtime.decoder.pages.take(8 * 30)
    for number in range(2400):
        spans = [
            PageSpan(
                pages[30 * row : 30 * row + 30], chance.randrange(500), chance.choice((1, chance.randrange(1, 400)))
            )
            for row in range(chance.choice((1, 2, 8)))
        ]
        tokens = sum(span.count for span in spans)
        model(np.zeros((tokens, model._table.shape[1]), np.float32), spans, [0])
        if number % 800 == 799:
            held_mb.append(int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20)
    assert held_mb[2] - held_mb[1] < 60


def test_a_load_without_a_state_directory_keeps_nothing(tmp_path, monkeypatch):
    """The matrices are made in memory."""
    monkeypatch.setattr(few_bits, "_write", None)
    assert _loaded(quantize="int8").loaded


def test_a_first_load_tells_how_far_it_is(first_load, state_dir):
    """`converted` rises to 1 and is 0 once the model is loaded; the next load converts nothing."""
    (engine, told), (again, told_again) = first_load, _telling(state_dir)
    assert engine.info.converted == again.info.converted == 0
    assert len({share for share in told if 0 < share < 1}) > 10
    assert sorted(told[: told.index(1.0)]) == told[: told.index(1.0)]
    assert not {share for share in told_again if 0 < share < 1}


def test_four_bits_are_those_of_the_language_models_layers(run, speech):
    """The head, the embeddings and the encoder are in 8; words of the recording stay, and the difference is told."""
    engine = _loaded(quantize="int4")
    (found,) = run(engine, [Utterance(speech)])
    assert found.text == demo.sample().text
    (option,) = (option for option in engine.info.options if option.name == "quantize")
    assert option.value == "int4"
    assert re.search(r"differ by at most (9|1[0-5])\.\d%", option.reason)
    found = files.read(demo.checkpoint_path())
    _, _, made = compiled_model.graphs(found, NumberFormats(4, False, 0), None, lambda share: None)
    halves = {name for name, (whole, _) in made.kept.matrices.items() if whole.dtype == np.uint8}
    layers = range(found.thinker["text_config"]["num_hidden_layers"])
    assert halves == {f"{n}.{name}" for n in layers for name in ("qkv", "out", "gate_up", "down")}


@pytest.mark.parametrize("missing", ["layers.0.mlp.down_proj.weight", "layers.0.input_layernorm.weight", "whole file"])
def test_a_checkpoint_that_lacks_weights_is_refused(tmp_path, missing):
    """Nothing is made up for them, whether they are a matrix of a graph or another part of it."""
    copy = tmp_path / "checkpoint"
    shutil.copytree(demo.checkpoint_path(), copy)
    file = copy / "model.safetensors"
    tensors = load_file(file)
    save_file({name: tensor for name, tensor in tensors.items() if not name.endswith(missing)}, file)
    if missing == "whole file":
        file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(ModelUnavailable, match=r"in checkpoint (lacks|cannot be loaded)"):
        _loaded(copy)


def test_a_load_that_runs_out_of_memory_does_not_call_the_checkpoint_damaged(monkeypatch):
    """OpenVINO raises a RuntimeError then, as it does for damaged weights: what it says tells them apart."""
    for text, kind in (("std::bad_alloc", EngineOutOfMemory), ("Check 'shapes' failed", ModelUnavailable)):
        monkeypatch.setattr(NumberFormats, "compiled", Mock(side_effect=RuntimeError(text)))
        with pytest.raises(kind):
            _loaded()
