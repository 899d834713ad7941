"""A model of Qwen3-TTS before it is loaded: how it runs, its voices and languages, how long a sentence may be."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from asr_server.engine.feature import SharedModel
from asr_server.features.speech_output.engines import protocol
from asr_server.features.speech_output.engines.protocol import SpeechTraits, Voice
from asr_server.text.words import syllables

_NEEDED = ("torch", "transformers", "qwen_tts")
FRAME_SAMPLES = 1_920
_FRAME_S = 0.08
# The SDK itself stops here unless a checkpoint says otherwise: 164 s.
MAX_FRAMES = 2_048
# Silence before and after the words, and a short text spoken slowly: 4 s.
_LEAST = 50
# A third of the slowest of the measured languages, Mandarin with 5.2 syllables a second (Pellegrino, Coupé and Marsico
# 2011), so that slow speech with pauses is not cut.
_SYLLABLES_PER_S = 1.7
# Text without spaces is estimated piece by piece, since `syllables` caches the estimates of words.
_PIECE = re.compile(r"\S{1,16}")

# From the model card: https://github.com/QwenLM/Qwen3-TTS. Each voice speaks all languages, and the listed one best.
_KNOWN = {
    "vivian": Voice("vivian", "A bright, slightly edgy young woman.", ("zh",)),
    "serena": Voice("serena", "A warm, gentle young woman.", ("zh",)),
    "uncle_fu": Voice("uncle_fu", "A seasoned man with a low, mellow voice.", ("zh",)),
    "dylan": Voice("dylan", "A young man of Beijing, clear and natural; Chinese in his dialect.", ("zh",)),
    "eric": Voice("eric", "A lively man of Chengdu, slightly husky; Chinese in the Sichuan dialect.", ("zh",)),
    "ryan": Voice("ryan", "A dynamic man with strong rhythm.", ("en",)),
    "aiden": Voice("aiden", "A sunny American man with a clear voice.", ("en",)),
    "ono_anna": Voice("ono_anna", "A playful Japanese woman, light and nimble.", ("ja",)),
    "sohee": Voice("sohee", "A warm Korean woman, rich in emotion.", ("ko",)),
}
# A voice for each of OpenAI's names. It is not meant to sound like OpenAI's voice of that name.
_OPENAI = {
    **{"alloy": "ryan", "ash": "aiden", "ballad": "eric", "cedar": "uncle_fu", "coral": "vivian", "echo": "aiden"},
    **{"fable": "dylan", "marin": "serena", "nova": "vivian", "onyx": "uncle_fu", "sage": "sohee"},
    **{"shimmer": "serena", "verse": "ryan"},
}
LANGUAGES = {
    **{"zh": "chinese", "en": "english", "ja": "japanese", "ko": "korean", "de": "german", "fr": "french"},
    **{"ru": "russian", "pt": "portuguese", "es": "spanish", "it": "italian"},
}
CUSTOM_VOICE, BASE = "custom_voice", "base"
# The size of the checkpoints that were not trained to follow instructions; the SDK drops instructions to them.
_SMALL = "0b6"


def missing() -> str:
    """Return why this installation cannot run Qwen3-TTS; "" if it can."""
    try:
        found = all(find_spec(name) is not None for name in _NEEDED)
    except ValueError:  # raised for a module that stands in for another
        found = False
    return (
        ""
        if found
        else "Qwen3-TTS needs its SDK: make speech, or pip install '.[gpu]', then "
        "pip install --no-deps qwen-tts==0.1.1 transformers==4.57.6 regex"
    )


@dataclass(frozen=True, slots=True)
class SpeechModel(SharedModel):
    """A model of Qwen3-TTS, and how it runs."""

    model_id: str  # a directory or a hub id
    setting: str = "SPEECH"  # the variable that names it, for messages
    device: str = "cpu"  # as in the plan
    dtype: str = "float32"  # as in the plan
    cpu_threads: int = 0  # as in the plan

    pack, unpack = staticmethod(protocol.pack), staticmethod(protocol.unpack)


def traits_of_config(config: Mapping[str, Any]) -> SpeechTraits:
    """Read the abilities of a checkpoint from its `config.json`, which was checked."""
    talker = config["talker_config"]
    is_small = config.get("tts_model_size") == _SMALL
    return _traits(config["tts_model_type"] == BASE, is_small, talker.get("spk_id") or (), talker["codec_language_id"])


def traits_of_name(model_id: str) -> SpeechTraits:
    """Return the abilities of a released checkpoint of this name, for one that is not downloaded yet."""
    name = model_id.lower()
    return _traits(name.endswith("-base"), "0.6b" in name, _KNOWN, LANGUAGES.values())


def _traits(imitates: bool, is_small: bool, speakers: Iterable[str], languages: Iterable[str] | None) -> SpeechTraits:
    """Return the traits of a Base checkpoint, which `imitates`, or of one with voices of its own."""
    own = () if imitates else tuple(speakers)
    spoken = frozenset(languages or ())
    return SpeechTraits(
        voices=tuple(_KNOWN.get(name, Voice(name, "A voice of this checkpoint.")) for name in own),
        openai_voices={other: name for other, name in _OPENAI.items() if name in own},
        languages=tuple(code for code, name in LANGUAGES.items() if name in spoken),
        imitates=imitates,
        follows_instructions=not (imitates or is_small),
    )


def frame_budget(text: str, language: str = "") -> int:
    """Return the most frames of 80 ms for `text` in `language` (its English name), by its number of syllables.

    The model sometimes does not end: with the released Base checkpoints about one sentence in 200 to 300 continues as
    noise (github.com/QwenLM/Qwen3-TTS/issues/118, github.com/sgl-project/sglang-omni/issues/1179). The budget bounds
    the noise, and must not cut slow speech.
    """
    count = sum(syllables(piece, language) for piece in _PIECE.findall(text))
    return min(MAX_FRAMES, _LEAST + math.ceil(count / _SYLLABLES_PER_S / _FRAME_S))
