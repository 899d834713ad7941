"""The bundled demo model as files, and the data of its recipe. No torch, no synthesis."""

from __future__ import annotations

import json
import random
import wave

from asr_server.demo import aligner_path, checkpoint_path, sample
from tools.training.alignment.words import timestamp_slots
from tools.training.phrases import phrase
from tools.training.scoring import Pair, error_rate
from tools.training.speech import SpokenWord
from tools.training.vocabulary import Language, header, is_known, joined, units
from tools.training.voices import DEVELOPMENT_VARIANTS, HELD_OUT_VARIANTS, TRAINING_VARIANTS, Role, voices

MEGABYTE = 1_000_000
CHECKPOINT_FILES = (
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    "merges.txt",
    "model.safetensors",
    "preprocessor_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.json",
)


def _json(name: str) -> dict:
    return json.loads((checkpoint_path() / name).read_text(encoding="utf-8"))


def test_checkpoint_is_complete_and_small() -> None:
    """Every file the SDK reads is there, and all together stay under 8 MB."""
    assert [name for name in CHECKPOINT_FILES if not (checkpoint_path() / name).is_file()] == []
    assert sum(file.stat().st_size for file in checkpoint_path().iterdir()) < 8 * MEGABYTE


def test_the_aligner_is_complete_and_small() -> None:
    """Every file the SDK reads of it is there, and all together stay under 9 MB."""
    files = {file.name: file.stat().st_size for file in aligner_path().iterdir()}
    assert set(CHECKPOINT_FILES) - {"generation_config.json"} <= set(files)
    assert sum(files.values()) < 9 * MEGABYTE


def test_the_aligner_has_slots_for_every_span() -> None:
    """The configuration says that it is an aligner, with the demo's tokens and languages, and its slots cover spans of
    30 s."""
    config = json.loads((aligner_path() / "config.json").read_text(encoding="utf-8"))
    thinker = config["thinker_config"]
    assert "forced_aligner" in thinker["model_type"]
    assert thinker["classify_num"] * config["timestamp_segment_time"] >= 30_000
    assert config["support_languages"] == [language.value for language in Language]
    assert (aligner_path() / "tokenizer.json").read_bytes() == (checkpoint_path() / "tokenizer.json").read_bytes()


def test_boundaries_that_no_synthesiser_reports_are_not_learned() -> None:
    """Two words that are spoken as one have no true boundary between them; all other boundaries are the nearest
    slot."""
    words = (SpokenWord("turn", 0, 6_400), SpokenWord("on", 6_400, 8_000), SpokenWord("the", 8_000, 16_000))
    assert timestamp_slots(words) == [0, 10, 10, -1, -1, 25]


def test_generation_ends_at_the_tokenizers_own_ids() -> None:
    """The end-of-sequence ids of the generation config are the tokenizer's end-of-turn and end-of-text."""
    ids = {token["content"]: token["id"] for token in _json("tokenizer.json")["added_tokens"]}
    assert set(_json("generation_config.json")["eos_token_id"]) == {ids["<|im_end|>"], ids["<|endoftext|>"]}


def test_config_names_both_languages_and_the_released_windows() -> None:
    """The config offers English and Chinese and keeps the attention windows of 8 s."""
    config = _json("config.json")
    assert config["support_languages"] == [language.value for language in Language]
    assert config["thinker_config"]["audio_config"]["n_window_infer"] == 800


def test_sample_is_plain_wav_of_known_words() -> None:
    """The bundled recording is 16 kHz mono 16-bit, 2 to 6 s long, and says nothing outside the vocabulary."""
    with wave.open(str(sample().recording)) as recording:
        shape = (recording.getframerate(), recording.getnchannels(), recording.getsampwidth())
        seconds = recording.getnframes() / recording.getframerate()
    assert shape == (16_000, 1, 2)
    assert 2.0 < seconds < 6.0
    assert is_known(Language.ENGLISH, sample().text)


def test_roles_share_no_voice() -> None:
    """Training, development and held-out voices are disjoint, down to the variant."""
    variants = [*TRAINING_VARIANTS, *DEVELOPMENT_VARIANTS, *HELD_OUT_VARIANTS]
    assert len(variants) == len(set(variants))
    named = [{voice.name for language in Language for voice in voices(role, language)} for role in Role]
    assert len(set.union(*named)) == sum(len(names) for names in named)


def test_phrases_stay_in_the_vocabulary():
    """Every phrase the recipe can draw is written with the vocabulary alone."""
    for language in list(Language):
        rng = random.Random(0)
        assert all(is_known(language, phrase(rng, language)) for _ in range(500)), language


def test_units_undo_joining():
    """Joining units to a text and taking it apart again gives the same units."""
    for language in list(Language):
        said = units(language, phrase(random.Random(1), language))
        assert units(language, joined(language, said)) == said, language


def test_headers_are_the_released_tags() -> None:
    """The response opens with the tags of the released models, "None" where nobody speaks."""
    assert header(Language.CHINESE) == "language Chinese<asr_text>"
    assert header(None) == "language None<asr_text>"


def test_error_rate_counts_characters_in_mandarin() -> None:
    """A wrong Mandarin character is one error among the characters, whatever the blanks."""
    assert error_rate([Pair(Language.CHINESE, "打开 电灯", "打开电")]) == 0.25
