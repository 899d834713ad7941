"""The abilities of a checkpoint, by its configuration or its name."""

import pytest

from asr_server.features.speech_output.engines.qwen_tts.voices import LANGUAGES, Abilities

NINE = ("vivian", "serena", "uncle_fu", "dylan", "eric", "ryan", "aiden", "ono_anna", "sohee")


def test_the_nine_voices_have_descriptions_and_openais_names():
    """All thirteen of OpenAI's voices are one of them."""
    traits = Abilities.of_name("Qwen/Qwen3-TTS-12Hz-1.7B-CustomVoice").traits
    assert tuple(voice.id for voice in traits.voices) == NINE
    assert len({voice.description for voice in traits.voices}) == 9
    assert set(traits.openai_voices.values()) <= set(NINE)
    assert set(traits.openai_voices) == {
        *("alloy", "ash", "ballad", "cedar", "coral", "echo", "fable", "marin", "nova", "onyx", "sage", "shimmer"),
        "verse",
    }
    assert traits.openai_voices["alloy"] == "ryan"
    assert traits.languages == ("zh", "en", "ja", "ko", "de", "fr", "ru", "pt", "es", "it")


@pytest.mark.parametrize(
    ("name", "imitates", "follows"),
    [
        ("Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice", False, False),
        ("Qwen/Qwen3-TTS-12Hz-1.7B-CustomVoice", False, True),
        ("Qwen/Qwen3-TTS-12Hz-0.6B-Base", True, False),
        ("Qwen/Qwen3-TTS-12Hz-1.7B-Base", True, False),
    ],
)
def test_released_checkpoints_are_known_by_name(name, imitates, follows):
    """The abilities are known before the checkpoint is downloaded."""
    traits = Abilities.of_name(name).traits
    assert (traits.imitates, traits.follows_instructions, bool(traits.voices)) == (imitates, follows, not imitates)


def test_a_tuned_checkpoint_has_the_voices_that_it_names():
    """OpenAI's names stand for those voices alone."""
    talker = {"spk_id": {"marie": 3000, "ryan": 3061}, "codec_language_id": {"french": 2061, "beijing_dialect": 2074}}
    config = {"tts_model_type": "custom_voice", "tts_model_size": "1b7", "talker_config": talker}
    traits = Abilities.of_config(config).traits
    assert [voice.id for voice in traits.voices] == ["marie", "ryan"]
    assert traits.openai_voices == {"alloy": "ryan", "verse": "ryan"}
    assert traits.languages == ("fr",)
    assert "french" in LANGUAGES.values()
