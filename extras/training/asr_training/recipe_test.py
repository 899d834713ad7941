"""The samples that the recipe draws, and the held-out recordings in `E2Etest/audio`; without torch or synthesis."""

import json
import random
from pathlib import Path

import pytest

from asr_training.alignment.words import timestamp_slots
from asr_training.phrases import phrase
from asr_training.scoring import Pair, error_rate
from asr_training.speech import SpokenWord
from asr_training.vocabulary import Language, is_known
from asr_training.voices import Role, voices

pytestmark = pytest.mark.nightly

AUDIO = Path(__file__).parents[3] / "E2Etest" / "audio"
CLIPS = json.loads((AUDIO / "manifest.json").read_text(encoding="utf-8"))


def test_clips_are_in_held_out_voices():
    held_out = {voice.name for language in Language for voice in voices(Role.HELD_OUT, language)}
    assert {clip["voice"] for clip in CLIPS if clip["language"]} <= held_out


def test_phrases_stay_in_the_vocabulary():
    for language in list(Language):
        rng = random.Random(0)
        assert all(is_known(language, phrase(rng, language)) for _ in range(500)), language


def test_error_rate_counts_characters_in_mandarin():
    assert error_rate([Pair(Language.CHINESE, "打开 电灯", "打开电")]) == 0.25


def test_boundaries_that_no_synthesiser_reports_are_not_learned():
    """Two words that are spoken as one have no true boundary; all other boundaries are the nearest slot."""
    words = (SpokenWord("turn", 0, 6_400), SpokenWord("on", 6_400, 8_000), SpokenWord("the", 8_000, 16_000))
    assert timestamp_slots(words) == [0, 10, 10, -1, -1, 25]
