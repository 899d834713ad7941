"""Locates and checks checkpoints of Qwen3-TTS: a name becomes a directory that can be loaded, or an error."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asr_server.core.audio import SPEECH_RATE
from asr_server.core.errors import ModelUnavailable
from asr_server.engine.qwen_asr.checkpoint import OnDownload, Wanted, find, missing_weights, read_json
from asr_server.features.speech_output.engines.protocol import SpeechTraits
from asr_server.features.speech_output.engines.qwen_tts.model import (
    BASE,
    CUSTOM_VOICE,
    FRAME_SAMPLES,
    traits_of_config,
)

MODEL_TYPE, CODEC_TYPE = "qwen3_tts", "qwen3_tts_tokenizer_12hz"
CODEC = "speech_tokenizer"
GENERATION = "generation_config.json"
_NEEDED = ("tokenizer_config.json", GENERATION, f"{CODEC}/config.json")
_TALKER_KEYS = ("hidden_size", "num_hidden_layers", "codec_language_id")
_VOICE_DESIGN = "voice_design"


@dataclass(frozen=True, slots=True)
class SpeechCheckpoint:
    """A directory that was checked, and what is in it."""

    directory: Path
    traits: SpeechTraits
    generation: dict[str, Any]  # content of generation_config.json


def locate(wanted: Wanted, on_download: OnDownload | None = lambda size_bytes: None) -> SpeechCheckpoint:
    """Return the checkpoint of a directory or a hub id, fetched if need be; see `find`. Raises `ModelUnavailable`."""
    return checked(find(wanted, checked, on_download), wanted)


def local(wanted: Wanted) -> SpeechCheckpoint | None:
    """Return the checkpoint if it is complete on this machine, otherwise None. Does not ask the hub."""
    try:
        return locate(wanted, None)
    except ModelUnavailable:
        return None


def checked(directory: Path, wanted: Wanted) -> SpeechCheckpoint:
    """Check `directory`. Raises `ModelUnavailable` unless it is a complete checkpoint that this engine can run."""
    if not (directory / "config.json").is_file():
        raise ModelUnavailable(f"{wanted}: not a checkpoint, it has no config.json.")
    config = read_json(directory / "config.json", wanted)
    _check_config(config, wanted)
    missing = [name for name in _NEEDED if not (directory / name).is_file()] + missing_weights(directory, wanted)
    missing += [f"{CODEC}/{name}" for name in missing_weights(directory / CODEC, wanted)]
    if missing:
        raise ModelUnavailable(
            f"{wanted}: the checkpoint is incomplete, it lacks {', '.join(missing)}. Download it again."
        )
    _check_codec(read_json(directory / CODEC / "config.json", wanted), wanted)
    return SpeechCheckpoint(directory, traits_of_config(config), read_json(directory / GENERATION, wanted))


def _check_codec(config: dict[str, Any], wanted: Wanted) -> None:
    kind = str(config.get("model_type", "unknown"))
    if kind != CODEC_TYPE:
        raise ModelUnavailable(f"{wanted}: its codec is a '{kind}'; the server runs '{CODEC_TYPE}'.")
    rates = config.get("output_sample_rate", SPEECH_RATE), config.get("decode_upsample_rate", FRAME_SAMPLES)
    if rates != (SPEECH_RATE, FRAME_SAMPLES):
        raise ModelUnavailable(
            f"{wanted}: its codec makes {rates[1]} samples a frame at {rates[0]} Hz; the server runs those that make "
            f"{FRAME_SAMPLES} at {SPEECH_RATE} Hz."
        )


def _check_config(config: dict[str, Any], wanted: Wanted) -> None:
    kind = str(config.get("model_type", "unknown"))
    if kind != MODEL_TYPE:
        raise ModelUnavailable(f"{wanted}: this is a '{kind}' checkpoint; speech needs Qwen3-TTS ('{MODEL_TYPE}').")
    talker = config.get("talker_config")
    if not isinstance(talker, dict) or any(key not in talker for key in _TALKER_KEYS):
        raise ModelUnavailable(f"{wanted}: config.json does not describe Qwen3-TTS. Download it again.")
    purpose = str(config.get("tts_model_type", "unknown"))
    if purpose not in (CUSTOM_VOICE, BASE):
        advice = "it has no voices" if purpose == _VOICE_DESIGN else "it is of another version"
        raise ModelUnavailable(
            f"{wanted}: this is a '{purpose}' checkpoint, {advice}; name a CustomVoice or a Base checkpoint."
        )
    traits = traits_of_config(config)
    if purpose == CUSTOM_VOICE and not traits.voices:
        raise ModelUnavailable(f"{wanted}: config.json names no voices (spk_id). Download it again.")
    if not traits.languages:
        raise ModelUnavailable(f"{wanted}: config.json names no language that the server knows. Download it again.")
