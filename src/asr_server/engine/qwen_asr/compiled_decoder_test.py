"""The compiled graph on the bundled checkpoint and on a random one of the released layout: numbers, bits and pages."""

import re

import numpy as np
import pytest

from asr_server import demo
from asr_server.engine.conftest import ends, loaded_qwen, qwen
from asr_server.engine.feature import OPENVINO, TORCH
from asr_server.engine.memory import PrefillPolicy
from asr_server.engine.openvino.compiled_text import PageSpan
from asr_server.engine.openvino.library import NumberFormats
from asr_server.engine.protocol import Utterance
from asr_server.engine.qwen_asr import compiled_model, files
from asr_server.engine.qwen_asr.compiled_decoder import CompiledDecoder

pytestmark = [pytest.mark.torch, pytest.mark.nightly]


def test_the_released_layout_computes_what_torch_does(released_checkpoint, run, speech, monkeypatch):
    """Heads of another size than the hidden states divided among them, and weights in bfloat16."""
    monkeypatch.setattr("asr_server.engine.qwen_asr.engine.token_budget", lambda samples: 12)
    engines = [loaded_qwen(released_checkpoint, runtime=library) for library in (OPENVINO, TORCH)]
    found = [run(engine, [Utterance(speech)])[0] for engine in engines]
    assert found[0].ids == found[1].ids
    assert found[0].logprobs == pytest.approx(found[1].logprobs, abs=1e-3)


def test_numbers_that_are_none_leave_no_trace_in_a_page(monkeypatch):
    """After a row with NaN, and one that leaves in its prompt. Kernels for AVX2 hide it from the ids of next rows."""
    engine, used, drop = loaded_qwen(rows=1, runtime=OPENVINO, budget_mb=32), [], CompiledDecoder.drop
    monkeypatch.setattr(CompiledDecoder, "drop", lambda rows, row: used.append(row.pages[:]) or drop(rows, row))
    lost = Utterance(np.full(12 * 16_000, np.nan, np.float32))
    ends(engine, lost)
    monkeypatch.setattr(PrefillPolicy, "tokens", lambda policy, limit_s: 120)
    engine.admit(0, lost)
    list(engine.step())
    engine.drop(0)
    assert [len(pages) > 2 for pages in used] == [True, True]
    assert not any(engine.runtime.decoder.pages.copy(pages).any() for pages in used)


def _telling(state_dir):
    """Return an engine with matrices in 8 bits, and the shares of them that it told while it was loaded."""
    told = list[float]()
    callbacks = [lambda: None, lambda: told.append(engine.info.converted)]
    engine = qwen(runtime=OPENVINO, quantize="int8", state_dir=state_dir, callbacks=callbacks)
    engine.load()
    return engine, told


def test_a_first_load_tells_how_far_it_is_and_the_next_maps_what_was_kept(tmp_path, run, speech):
    """`converted` rises to 1 and is 0 once the model is loaded. The next load has the same log-probabilities."""
    (engine, told), (again, told_again) = _telling(tmp_path), _telling(tmp_path)
    assert engine.info.converted == again.info.converted == 0
    assert len({share for share in told if 0 < share < 1}) > 10
    assert sorted(told[: told.index(1.0)]) == told[: told.index(1.0)]
    assert not {share for share in told_again if 0 < share < 1}
    assert again.info.options == engine.info.options
    config = files.read(demo.checkpoint_path()).thinker
    count = 4 * (config["text_config"]["num_hidden_layers"] + config["audio_config"]["encoder_layers"]) + 4
    (option,) = (option for option in engine.info.options if option.name == "quantize")
    assert (option.active, option.value) == (True, "int8")
    assert option.reason.startswith(f"the outputs of {count} layers differ by at most ")
    found = [run(one, [Utterance(speech)])[0].logprobs for one in (engine, again)]
    assert found[0] == found[1]


def test_the_largest_logits_are_those_of_the_heads_own_weights():
    """The likeliest token and its logit, and a sum of exponentials that they are part of."""
    decoder = loaded_qwen(runtime=OPENVINO, quantize="int8").runtime.decoder
    model, pages = decoder.model, decoder.pages.take(1)
    following = model(model.embed([5, 6, 7]), [PageSpan(pages, 0, 3)], [0, 2])
    exact = model.request.get_output_tensor(3).data @ model.head.floats().T
    assert following.tokens.tolist() == exact.argmax(-1).tolist()
    for row, token in enumerate(following.tokens):
        assert following.logits[row, token] == pytest.approx(float(exact[row, token]), abs=1e-4)
    lse = np.log(np.exp(following.logits).sum(-1))
    assert following.lse.tolist() == pytest.approx(lse.tolist(), abs=1e-4)


def test_four_bits_are_those_of_the_language_models_layers(run, speech):
    """The head, the embeddings and the encoder are in 8; words of the recording stay, and the difference is told."""
    engine = loaded_qwen(runtime=OPENVINO, quantize="int4")
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
