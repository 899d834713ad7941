"""The engine against the SDK's greedy decoding, and what loading a model does and refuses."""

import gc
import re
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from asr_server import demo
from asr_server.core.errors import ModelUnavailable
from asr_server.engine.conftest import aligned, loaded_aligner, loaded_qwen, qwen
from asr_server.engine.feature import OPENVINO, TORCH
from asr_server.engine.protocol import Option, Utterance
from asr_server.engine.qwen_asr import files

pytestmark = [pytest.mark.torch, pytest.mark.nightly]


@pytest.mark.parametrize(
    "options",
    [{}, {"language": "English"}, {"context": "kitchen, lights"}, {"language": "English", "context": "the bedroom"}],
)
def test_ids_are_the_sdks_up_to_one_window(make_engine, run, clips, options):
    """The SDK gets the checkpoint's end tokens instead of its fixed ones."""
    from tools.sdk import Qwen3ASRForConditionalGeneration, Qwen3ASRProcessor

    model = Qwen3ASRForConditionalGeneration.from_pretrained(demo.checkpoint_path(), dtype=torch.float32).eval()
    processor, ends = Qwen3ASRProcessor.from_pretrained(demo.checkpoint_path()), model.generation_config.eos_token_id
    audio, language = {"type": "audio", "audio": ""}, options.get("language")
    messages = [
        {"role": "system", "content": options.get("context", "")},
        {"role": "user", "content": [audio]},
    ]
    text = processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    text += f"language {language}<asr_text>" if language else ""
    short = [clip for clip in clips if len(clip) <= 8 * 16_000]  # the SDK's missing mask shows in later windows
    assert len(short) >= 3
    for clip in short:
        inputs = processor(text=[text], audio=[clip], return_tensors="pt", padding=True)
        out = model.generate(**inputs, max_new_tokens=200, eos_token_id=ends, pad_token_id=ends[0])
        expected = out.sequences[0, inputs["input_ids"].shape[1] :].tolist()
        (ours,) = run(make_engine(1), [Utterance(clip, **options)])
        assert list(ours.ids) == [token for token in expected if token not in ends]


@pytest.mark.parametrize("library", [TORCH, OPENVINO])
@pytest.mark.parametrize(
    "missing", ["audio_tower.proj1.weight", "layers.0.mlp.down_proj.weight", "layers.0.input_layernorm.weight", "end"]
)
def test_a_checkpoint_that_lacks_weights_is_refused(tmp_path, library, missing):
    """Nothing is made up for them, as the SDK would, and nothing is half loaded."""
    copy = tmp_path / "checkpoint"
    shutil.copytree(demo.checkpoint_path(), copy)
    file = copy / "model.safetensors"
    tensors = load_file(file)
    save_file({name: tensor for name, tensor in tensors.items() if not name.endswith(missing)}, file)
    if missing == "end":
        file.write_bytes(file.read_bytes()[:-8])
    engine = qwen(copy, runtime=library)
    with pytest.raises(ModelUnavailable, match=f"lacks.*{re.escape(missing)}|damaged|cannot be loaded"):
        engine.load()
    assert not engine.loaded


def test_a_loaded_model_is_not_walked_by_the_garbage_collector(make_engine):
    """A full collection over a million lasting objects takes a quarter of a second; loaded, they are set aside."""
    make_engine(1)
    engine = loaded_qwen()
    assert len(gc.get_objects()) < gc.get_freeze_count() / 10
    engine.unload()
    assert gc.get_freeze_count() == 0


@pytest.mark.parametrize("library", [TORCH, OPENVINO])
@pytest.mark.parametrize("model", [demo.checkpoint_path(), demo.aligner_path()])
def test_a_long_pass_says_that_it_moves(library, model, speech, items):
    """Slow is no hang. Progress is told at the convolutions and each layer in torch, and at each graph of OpenVINO."""
    beats = []
    if model == demo.aligner_path():
        aligned(loaded_aligner(runtime=library, on_progress=lambda: beats.append(1)), items[:1])
    else:
        engine = loaded_qwen(rows=1, runtime=library, callbacks=[lambda: beats.append(1)])
        beats.clear()
        engine.admit(0, Utterance(speech))
        assert not beats
        list(engine.step())
    config = files.read(model).thinker
    layers = 1 + config["audio_config"]["encoder_layers"] + config["text_config"]["num_hidden_layers"]
    assert len(beats) == layers if library == TORCH else len(beats) >= 3


def test_the_plans_number_of_threads_is_torchs():
    """The planned number of threads computes, not one for each logical CPU of the machine."""
    before = torch.get_num_threads()
    try:
        loaded_qwen(cpu_threads=before + 1)
        assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)


def test_a_machine_that_refuses_the_servers_kernels_is_used_without(run, clips, alone):
    """Without Triton the option gives the reason, and torch's operations compute the answers."""
    engine = loaded_qwen(rows=2, budget_mb=16, options=(Option("fuse", True, "kernels", ""),))
    (told,) = (option for option in engine.info.options if option.name == "fuse")
    assert (told.active, "triton" in told.reason) == (False, True)
    assert run(engine, [Utterance(clips[0])])[0].ids == alone[0].ids
