"""The samples that the recipe draws, and the held-out recordings in `E2Etest/audio`; without torch or synthesis."""

import json
import random
from pathlib import Path

import pytest

from asr_server import demo
from asr_training.alignment.words import timestamp_slots
from asr_training.phrases import phrase
from asr_training.scoring import Pair, error_rate
from asr_training.speech import SpokenWord
from asr_training.vocabulary import Language, header, is_known, joined, units
from asr_training.voices import DEVELOPMENT_VARIANTS, HELD_OUT_VARIANTS, TRAINING_VARIANTS, Role, voices

pytestmark = pytest.mark.nightly

AUDIO = Path(__file__).parents[3] / "E2Etest" / "audio"
CLIPS = json.loads((AUDIO / "manifest.json").read_text(encoding="utf-8"))


def test_manifest_and_folder_agree():
    """The manifest lists exactly the recordings in the folder, under 6 MB together."""
    files = {file.name for file in AUDIO.glob("*.flac")}
    assert {clip["file"] for clip in CLIPS} == files
    assert sum((AUDIO / name).stat().st_size for name in files) < 6_000_000


def test_clips_say_known_words_or_nothing():
    """Every clip with a language says words of the vocabulary, and every clip without one says nothing."""
    assert is_known(Language.ENGLISH, demo.sample().text)
    for clip in CLIPS:
        assert bool(clip["text"]) is (clip["language"] is not None)
        assert not clip["text"] or is_known(Language(clip["language"]), clip["text"])


def test_clips_are_in_held_out_voices():
    """No clip is spoken by a voice outside the held-out ones."""
    held_out = {voice.name for language in Language for voice in voices(Role.HELD_OUT, language)}
    assert {clip["voice"] for clip in CLIPS if clip["language"]} <= held_out


def test_roles_share_no_voice():
    """Training, development and held-out voices are disjoint, down to the variant."""
    variants = [*TRAINING_VARIANTS, *DEVELOPMENT_VARIANTS, *HELD_OUT_VARIANTS]
    assert len(variants) == len(set(variants))
    named = [{voice.name for language in Language for voice in voices(role, language)} for role in Role]
    assert len(set.union(*named)) == sum(len(names) for names in named)


def test_phrases_stay_in_the_vocabulary():
    """Every phrase the recipe can draw is written only with words of the vocabulary."""
    for language in list(Language):
        rng = random.Random(0)
        assert all(is_known(language, phrase(rng, language)) for _ in range(500)), language


def test_units_undo_joining():
    """Joining units to a text and taking it apart again gives the same units."""
    for language in list(Language):
        said = units(language, phrase(random.Random(1), language))
        assert units(language, joined(language, said)) == said, language


def test_headers_are_the_released_tags():
    """The response opens with the tags of the released models, "None" without speech."""
    assert header(Language.CHINESE) == "language Chinese<asr_text>"
    assert header(None) == "language None<asr_text>"


def test_error_rate_counts_characters_in_mandarin():
    """A wrong Mandarin character is one error among the characters, whatever the blanks."""
    assert error_rate([Pair(Language.CHINESE, "打开 电灯", "打开电")]) == 0.25


def test_boundaries_that_no_synthesiser_reports_are_not_learned():
    """Two words that are spoken as one have no true boundary; all other boundaries are the nearest slot."""
    words = (SpokenWord("turn", 0, 6_400), SpokenWord("on", 6_400, 8_000), SpokenWord("the", 8_000, 16_000))
    assert timestamp_slots(words) == [0, 10, 10, -1, -1, 25]
