"""The abilities of a checkpoint, by its configuration or its name, and the length that a sentence may reach."""

import pytest

from asr_server.features.speech_output.engines.protocol import MAX_SENTENCE_CHARS, OPENAI_VOICES
from asr_server.features.speech_output.engines.qwen_tts import model
from asr_server.features.speech_output.engines.qwen_tts.model import MAX_FRAMES, frame_budget

FRAME_S = 0.08


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
    """The abilities are known before the checkpoint is downloaded. All names of OpenAI are one of its voices."""
    traits = model.traits_of_name(name)
    assert (traits.imitates, traits.follows_instructions, bool(traits.voices)) == (imitates, follows, not imitates)
    assert set(traits.openai_voices) == (set() if imitates else set(OPENAI_VOICES))
    assert set(traits.openai_voices.values()) <= {voice.id for voice in traits.voices}


def test_a_tuned_checkpoint_has_the_voices_that_it_names():
    talker = {"spk_id": {"marie": 3000, "ryan": 3061}, "codec_language_id": {"french": 2061, "beijing_dialect": 2074}}
    traits = model.traits_of_config({"tts_model_type": "custom_voice", "talker_config": talker})
    assert [voice.id for voice in traits.voices] == ["marie", "ryan"]
    assert traits.openai_voices == {"alloy": "ryan", "verse": "ryan"}
    assert traits.languages == ("fr",)


# A minute read aloud, in characters (IReST, Trauzettel-Klosinski and Dietz, 2012), and some of them.
@pytest.mark.parametrize(
    ("language", "minute", "piece"),
    [
        *(("English", 987, "reading "), ("German", 920, "langsam "), ("Russian", 986, "медленно ")),
        *(("Chinese", 255, "慢读"), ("Japanese", 357, "ゆっくり読")),
    ],
)
def test_speech_at_half_the_speed_of_reading_aloud_is_not_cut(language, minute, piece):
    """Speech without an end is stopped within five times its length, and 4 s."""
    text = (piece * 100)[:120]
    length_s = len(text) * 60 / minute
    assert 2 * length_s <= frame_budget(text, language) * FRAME_S <= 5 * length_s + 4.1


@pytest.mark.parametrize(
    ("text", "language", "least_s", "most_s"),
    [
        ("Hi.", "English", 4, 6),
        ("1次", "Chinese", 4, 6),
        ("1,234,567", "English", 8, 60),  # 20 syllables, which take 5 s slowly
        ("字" * MAX_SENTENCE_CHARS, "Chinese", MAX_FRAMES * FRAME_S, MAX_FRAMES * FRAME_S),  # as the SDK allows
    ],
)
def test_a_text_has_time_to_be_read_out_with_silence_around_it(text, language, least_s, most_s):
    assert least_s <= frame_budget(text, language) * FRAME_S <= most_s
