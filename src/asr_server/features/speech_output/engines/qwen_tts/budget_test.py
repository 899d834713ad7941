"""The length that a sentence may reach."""

import pytest

from asr_server.features.speech_output.engines.protocol import MAX_SENTENCE_CHARS
from asr_server.features.speech_output.engines.qwen_tts.budget import MAX_FRAMES, frame_budget

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
