"""The bundled demo model as files. No torch."""

from __future__ import annotations

import json
import wave

from asr_server.demo import aligner_path, checkpoint_path, sample

MEGABYTE = 1_000_000
LANGUAGES = ["English", "Chinese"]
CHECKPOINT_FILES = {
    *("chat_template.jinja", "config.json", "generation_config.json", "merges.txt", "model.safetensors"),
    *("preprocessor_config.json", "tokenizer.json", "tokenizer_config.json", "vocab.json"),
}


def _json(name: str) -> dict:
    return json.loads((checkpoint_path() / name).read_text(encoding="utf-8"))


def test_both_checkpoints_are_complete_and_small() -> None:
    """Every file the SDK reads is there, and all together stay under 8 and 9 MB."""
    for path, most, without in ((checkpoint_path(), 8, set()), (aligner_path(), 9, {"generation_config.json"})):
        files = {file.name: file.stat().st_size for file in path.iterdir()}
        assert CHECKPOINT_FILES - without <= set(files)
        assert sum(files.values()) < most * MEGABYTE


def test_the_aligner_has_slots_for_every_span() -> None:
    """Its slots cover spans of 30 s, and it has the demo's tokens and languages."""
    config = json.loads((aligner_path() / "config.json").read_text(encoding="utf-8"))
    assert config["thinker_config"]["classify_num"] * config["timestamp_segment_time"] >= 30_000
    assert config["support_languages"] == LANGUAGES
    assert (aligner_path() / "tokenizer.json").read_bytes() == (checkpoint_path() / "tokenizer.json").read_bytes()


def test_generation_ends_at_the_tokenizers_own_ids() -> None:
    """The end-of-sequence ids of the generation config are the tokenizer's end-of-turn and end-of-text."""
    ids = {token["content"]: token["id"] for token in _json("tokenizer.json")["added_tokens"]}
    assert set(_json("generation_config.json")["eos_token_id"]) == {ids["<|im_end|>"], ids["<|endoftext|>"]}


def test_config_names_both_languages_and_the_released_windows() -> None:
    """The config offers English and Chinese and keeps the attention windows of 8 s."""
    config = _json("config.json")
    assert config["support_languages"] == LANGUAGES
    assert config["thinker_config"]["audio_config"]["n_window_infer"] == 800


def test_sample_is_plain_wav() -> None:
    """The bundled recording is 16 kHz mono 16-bit and 2 to 6 s long."""
    with wave.open(str(sample().recording)) as recording:
        shape = (recording.getframerate(), recording.getnchannels(), recording.getsampwidth())
        seconds = recording.getnframes() / recording.getframerate()
    assert shape == (16_000, 1, 2)
    assert 2.0 < seconds < 6.0
