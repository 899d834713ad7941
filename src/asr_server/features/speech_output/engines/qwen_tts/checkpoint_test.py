"""Checkpoints that are refused before anything heavy is loaded, and the words of the refusal."""

import pytest

from asr_server.core.errors import ModelUnavailable
from asr_server.engine.qwen_asr.checkpoint import Wanted
from asr_server.features.speech_output.engines.qwen_tts import checkpoint
from asr_server.features.speech_output.engines.qwen_tts.engine import QwenSpeechEngine
from asr_server.features.speech_output.engines.qwen_tts.model import SpeechModel

pytestmark = pytest.mark.torch  # the files are made by the SDK
CONFIG, CODEC = "config.json", "speech_tokenizer/config.json"


def _cut(path):
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content[: len(content) // 2])


def _without_a_weight(path):
    from safetensors.torch import load_file, save_file

    weights = load_file(path)
    del weights["talker.codec_head.weight"]
    path.unlink()
    save_file(weights, path, {"format": "pt"})


@pytest.mark.parametrize(
    ("file", "changed", "message"),
    [
        (CONFIG, {"model_type": "qwen3_asr"}, "this is a 'qwen3_asr' checkpoint; speech needs Qwen3-TTS"),
        (CONFIG, {"tts_model_type": "voice_design"}, "it has no voices; name a CustomVoice or a Base checkpoint"),
        (CONFIG, {"tts_model_type": "other"}, "it is of another version"),
        (CONFIG, {"talker_config": {}}, "config.json does not describe Qwen3-TTS"),
        (CODEC, {"model_type": "qwen3_tts_tokenizer_25hz"}, "its codec is a 'qwen3_tts_tokenizer_25hz'"),
        (CODEC, {"output_sample_rate": 48_000, "decode_upsample_rate": 3_840}, "3840 samples a frame at 48000 Hz"),
    ],
)
def test_another_configuration_is_refused(make_checkpoint, file, changed, message):
    directory = make_checkpoint(changes={file: changed})
    with pytest.raises(ModelUnavailable, match=message) as raised:
        checkpoint.locate(Wanted("SPEECH", str(directory)))
    assert str(raised.value).startswith(f"SPEECH={directory}: ")


@pytest.mark.parametrize(
    "name",
    ["tokenizer_config.json", "generation_config.json", "model.safetensors", "speech_tokenizer/model.safetensors"],
)
def test_a_missing_file_is_named(make_checkpoint, name):
    """The message advises to download the checkpoint again; nothing of it counts as on this machine."""
    directory = make_checkpoint()
    (directory / name).unlink()
    with pytest.raises(ModelUnavailable, match=rf"incomplete, it lacks {name}\. Download it again"):
        checkpoint.locate(Wanted("SPEECH", str(directory)))
    assert checkpoint.local(Wanted("SPEECH", str(directory))) is None


@pytest.mark.slow("writes and loads a checkpoint")
@pytest.mark.parametrize(
    ("file", "damage", "message"),
    [
        ("model.safetensors", _cut, "damaged or of another version"),
        ("speech_tokenizer/model.safetensors", _cut, "damaged or of another version"),
        ("vocab.json", _cut, "damaged or of another version"),
        ("model.safetensors", _without_a_weight, "lacks 1 weights, such as talker.codec_head.weight"),
    ],
)
def test_damage_that_only_loading_finds_is_said(make_checkpoint, file, damage, message):
    """Missing weights would otherwise be random ones."""
    directory = make_checkpoint()
    damage(directory / file)
    engine = QwenSpeechEngine(SpeechModel(str(directory)))
    with pytest.raises(ModelUnavailable, match=message):
        engine.load()
    assert not engine.loaded


def test_the_purpose_of_a_checkpoint_is_in_its_configuration(make_checkpoint):
    models = [SpeechModel(str(make_checkpoint(kind))) for kind in ("custom_voice", "base")]
    named, base = (QwenSpeechEngine(model).traits for model in models)
    assert (len(named.voices), named.imitates, named.follows_instructions) == (9, False, False)
    assert (base.voices, base.openai_voices, base.imitates) == ((), {}, True)
    assert named.languages == base.languages
