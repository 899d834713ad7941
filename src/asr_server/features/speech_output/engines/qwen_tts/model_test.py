"""The abilities of a checkpoint, by its configuration or its name, and the length that a sentence may reach."""

import pytest

from asr_server.features.speech_output.engines.protocol import MAX_SENTENCE_CHARS
from asr_server.features.speech_output.engines.qwen_tts.model import (
    LANGUAGES,
    MAX_FRAMES,
    frame_budget,
    traits_of_config,
    traits_of_name,
)

NINE = ("vivian", "serena", "uncle_fu", "dylan", "eric", "ryan", "aiden", "ono_anna", "sohee")
FRAME_S = 0.08
# A minute read aloud, in characters: IReST, Trauzettel-Klosinski and Dietz, 2012.
READ_ALOUD = {"English": 987, "German": 920, "Russian": 986, "Chinese": 255, "Japanese": 357}
PIECES = {
    "English": "reading ",
    "German": "langsam ",
    "Russian": "медленно ",
    "Chinese": "慢读",
    "Japanese": "ゆっくり読",
}


def test_the_nine_voices_have_descriptions_and_openais_names():
    """All thirteen of OpenAI's voices are one of them."""
    traits = traits_of_name("Qwen/Qwen3-TTS-12Hz-1.7B-CustomVoice")
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
    traits = traits_of_name(name)
    assert (traits.imitates, traits.follows_instructions, bool(traits.voices)) == (imitates, follows, not imitates)


def test_a_tuned_checkpoint_has_the_voices_that_it_names():
    """OpenAI's names stand for those voices alone."""
    talker = {"spk_id": {"marie": 3000, "ryan": 3061}, "codec_language_id": {"french": 2061, "beijing_dialect": 2074}}
    config = {"tts_model_type": "custom_voice", "tts_model_size": "1b7", "talker_config": talker}
    traits = traits_of_config(config)
    assert [voice.id for voice in traits.voices] == ["marie", "ryan"]
    assert traits.openai_voices == {"alloy": "ryan", "verse": "ryan"}
    assert traits.languages == ("fr",)
    assert "french" in LANGUAGES.values()


@pytest.mark.parametrize("language", READ_ALOUD)
def test_speech_at_half_the_speed_of_reading_aloud_is_not_cut(language):
    """Speech without an end is stopped within five times its length, and 4 s."""
    text = (PIECES[language] * 100)[:120]
    length_s = len(text) * 60 / READ_ALOUD[language]
    assert 2 * length_s <= frame_budget(text, language) * FRAME_S <= 5 * length_s + 4.1


def test_short_texts_have_time_for_silence_around_them():
    """Some seconds, and not minutes."""
    assert 4 <= frame_budget("Hi.", "English") * FRAME_S <= 6
    assert 4 <= frame_budget("1次", "Chinese") * FRAME_S <= 6


def test_numbers_have_time_to_be_read_out():
    """ "1,234,567" has 20 syllables, which take 5 s slowly."""
    assert frame_budget("1,234,567", "English") * FRAME_S >= 8


def test_no_sentence_takes_more_than_the_sdk_allows():
    """The longest sentence is tried, in the script that takes longest."""
    assert frame_budget("字" * MAX_SENTENCE_CHARS, "Chinese") == MAX_FRAMES
