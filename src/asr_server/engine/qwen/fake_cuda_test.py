"""Passes on tensors that say they are on a GPU and hold nothing: where devices or formats are mixed, torch refuses."""

import json
from contextlib import nullcontext
from unittest import mock

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from asr_server import demo
from asr_server.engine.qwen import memory
from asr_server.engine.qwen.capacity import Capacity
from asr_server.engine.qwen.decoder import RowInput, SlotDecoder, SlotRow
from asr_server.engine.qwen.encoder import WindowedEncoder
from asr_server.engine.qwen.language_model import LanguageModel
from asr_server.engine.qwen.sampling import Choice
from asr_server.engine.speculative import Draft

pytestmark = pytest.mark.torch

DEVICE = torch.device("cuda", 0)


@pytest.fixture(params=[torch.float32, torch.bfloat16, torch.float16])
def parts(request):
    """Encoder, language model and head of the bundled checkpoint's configuration."""
    from qwen_asr.core.transformers_backend import Qwen3ASRConfig, Qwen3ASRForConditionalGeneration

    config = Qwen3ASRConfig(**json.loads((demo.checkpoint_path() / "config.json").read_text()))
    with FakeTensorMode(), torch.inference_mode():
        thinker = Qwen3ASRForConditionalGeneration(config).eval().thinker
        for module in thinker.modules():
            for name, held in {**module._parameters, **module._buffers}.items():
                if held is not None:
                    dtype = request.param if held.dtype == torch.float32 and name != "inv_freq" else held.dtype
                    made = torch.nn.Buffer(torch.empty(held.shape, device=DEVICE, dtype=dtype))
                    module._parameters.pop(name, None)
                    module._buffers[name] = made
        # Pinning needs a driver, and so does switching autocast off.
        pinned = mock.patch.object(memory, "upload", lambda tensor, device: tensor.to(device))
        with pinned, mock.patch("torch.autocast", lambda **_: nullcontext()):
            yield WindowedEncoder(thinker.audio_tower), LanguageModel(thinker.model), thinker.lm_head


def test_a_prefill_and_a_step_stay_on_the_gpu(parts, monkeypatch):
    """Audio of several lengths, prompts in two parts, a draft, a sampled row, and steps with and without proposals."""
    encoder, model, head = parts
    asked = []

    def choose(given, states, draws, forced, watched):
        logits = given(states)
        assert logits.device == states.device == DEVICE
        asked.append(tuple(logits.shape))
        return [Choice(5, -0.1, -9.0)] * len(states)

    monkeypatch.setattr("asr_server.engine.qwen.decoder.choose", choose)
    decoder = SlotDecoder(model, head, frozenset(), Capacity(4, 4 * 2048 * 64, 0, 64))
    for key, frames in enumerate((60, 800, 1230)):
        row = SlotRow(key=key, budget=50, draft=Draft(range(20, 40)) if key == 1 else None, temperature=float(key == 2))
        proposal = row.proposal()
        windows = encoder.windows(torch.zeros(128, frames))
        embeds = model.embed(torch.zeros(9 + len(proposal), dtype=torch.long, device=DEVICE))
        decoder.seat(row, RowInput(embeds[:6], windows, embeds[6:], tail=1 + len(proposal)), None)
    while len(decoder.decoding) < 3:
        given = decoder.next_input(100)
        for row, count in given:
            row.input.add(encoder(missing) if (missing := row.input.missing(count)) else [])
        decoder.prefill(given)
    for _ in range(3):
        decoder.step()
    decoder.drop(decoder.rows[0])
    decoder.step()
    assert len(asked) > 5
