"""Invariants of the engine on random weights in the released layout: grouped heads of 128, three-axis positions."""

import json
import random
import shutil

import pytest
import torch

from asr_server import demo
from asr_server.engine.feature import Plan
from asr_server.engine.protocol import Utterance
from asr_server.engine.qwen_asr.engine import QwenEngine

pytestmark = [pytest.mark.torch, pytest.mark.nightly]

ANSWER_TOKENS = 24
TEXT = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "rope_theta": 1_000_000.0,
    "rope_scaling": {"rope_type": "default", "mrope_interleaved": True, "mrope_section": [24, 20, 20]},
}
AUDIO = {"encoder_layers": 3, "d_model": 112, "encoder_attention_heads": 14, "encoder_ffn_dim": 256, "output_dim": 128}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A checkpoint of the released layout in small, its weights random and large enough to make answers vary."""
    from tools.sdk import Qwen3ASRConfig, Qwen3ASRForConditionalGeneration

    directory = tmp_path_factory.mktemp("random") / "model"
    shutil.copytree(demo.checkpoint_path(), directory, ignore=shutil.ignore_patterns("*.safetensors"))
    config = json.loads((directory / "config.json").read_text())
    config["thinker_config"]["audio_config"].update(AUDIO)
    config["thinker_config"]["text_config"].update(TEXT)
    generation = (directory / "generation_config.json").read_text()
    torch.manual_seed(1)
    model = Qwen3ASRForConditionalGeneration(Qwen3ASRConfig(**config)).float()
    for name, weight in model.named_parameters():
        if weight.dim() > 1 and "embed" not in name:
            torch.nn.init.normal_(weight, std=0.4)
    model.save_pretrained(directory)
    (directory / "generation_config.json").write_text(generation)
    return directory


@pytest.fixture(scope="module")
def engine(checkpoint):
    loaded = QwenEngine(Plan("qwen", str(checkpoint), "cpu", "float32", 4, 0, ()))
    loaded.load()
    return loaded


@pytest.fixture(autouse=True, scope="module")
def _short_answers():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("asr_server.engine.qwen_asr.engine.token_budget", lambda samples: ANSWER_TOKENS)
        yield


@pytest.fixture(scope="module")
def alone(engine, run, clips):
    return [run(engine, [Utterance(clip)])[0].ids for clip in clips]


def test_the_answers_vary(alone):
    """Otherwise equal ids would prove nothing."""
    assert len(set(alone)) > len(alone) / 2
    assert max(len(set(ids)) for ids in alone) > 8


def test_ids_are_the_sdks_up_to_one_window(checkpoint, alone, clips):
    """The SDK's own greedy loop gives the same ids on clips up to 8 s."""
    from qwen_asr.core.transformers_backend import Qwen3ASRForConditionalGeneration, Qwen3ASRProcessor

    model = Qwen3ASRForConditionalGeneration.from_pretrained(checkpoint, dtype=torch.float32).eval()
    processor = Qwen3ASRProcessor.from_pretrained(checkpoint)
    ends = model.generation_config.eos_token_id
    messages = [{"role": "system", "content": ""}, {"role": "user", "content": [{"type": "audio", "audio": ""}]}]
    text = processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    for clip, ours in zip(clips, alone, strict=True):
        if len(clip) > 8 * 16_000:
            continue
        inputs = processor(text=[text], audio=[clip], return_tensors="pt", padding=True)
        out = model.generate(**inputs, max_new_tokens=ANSWER_TOKENS, eos_token_id=ends, pad_token_id=ends[0])
        new = [i for i in out.sequences[0, inputs["input_ids"].shape[1] :].tolist() if i not in ends]
        assert list(ours) == new[: len(ours)]
        assert len(ours) in (len(new), ANSWER_TOKENS)


def test_batches_drafts_and_sessions_never_change_an_id(engine, run, clips, alone):
    """Any mix in one batch of plain rows, drafts right and wrong, and sessions, in any order."""
    rng = random.Random(2)
    for _ in range(2):
        order = [rng.randrange(len(clips)) for _ in range(9)]
        work = [
            rng.choice(
                [
                    Utterance(clips[i]),
                    Utterance(clips[i], draft=alone[i]),
                    Utterance(clips[i], draft=(*alone[i][:3], 1, *alone[i][4:])),
                    Utterance(clips[i], session=f"clip {i}", draft=alone[(i + 1) % len(alone)]),
                ]
            )
            for i in order
        ]
        assert [h.ids for h in run(engine, work)] == [alone[i] for i in order]


def test_a_growing_session_never_changes_an_id(engine, run, clips):
    """Every partial of a recording past two windows equals a run from scratch."""
    recording, draft = clips[3], ()
    for end in range(20_000, len(recording), 60_000):
        part = recording[:end]
        (fresh,) = run(engine, [Utterance(part)])
        (kept,) = run(engine, [Utterance(part, session="grow", draft=draft)])
        assert kept.ids == fresh.ids
        draft = kept.ids
