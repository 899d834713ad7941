"""The voices and languages of Qwen3-TTS, and what a checkpoint's configuration says it can do. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from asr_server.features.speech_output.engines.protocol import SpeechTraits, Voice

# By the model card: https://github.com/QwenLM/Qwen3-TTS. They speak all languages, and these best.
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
# A voice for each of OpenAI's names. None is meant to sound like the one of that name.
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
# The size of the checkpoints that were not trained to follow instructions; the SDK drops instructions there.
_SMALL = "0b6"


@dataclass(frozen=True, slots=True)
class Abilities:
    """The abilities of a checkpoint."""

    kind: str  # CustomVoice or Base, in the words of the configuration
    follows_instructions: bool
    speakers: tuple[str, ...]  # its own names of voices
    languages: tuple[str, ...]  # its own names of languages

    @classmethod
    def of_config(cls, config: Mapping[str, Any]) -> Abilities:
        """Read the abilities from a checkpoint's `config.json`, which was checked."""
        kind, talker = str(config["tts_model_type"]), config["talker_config"]
        named = kind == CUSTOM_VOICE
        return cls(
            kind,
            follows_instructions=named and config.get("tts_model_size") != _SMALL,
            speakers=tuple(talker.get("spk_id") or ()) if named else (),
            languages=tuple(talker.get("codec_language_id") or ()),
        )

    @classmethod
    def of_name(cls, model_id: str) -> Abilities:
        """Return the abilities of a released checkpoint of this name, for one that is not downloaded yet."""
        name = model_id.lower()
        kind = BASE if name.endswith("-base") else CUSTOM_VOICE
        named = kind == CUSTOM_VOICE
        return cls(kind, named and "0.6b" not in name, tuple(_KNOWN) if named else (), tuple(LANGUAGES.values()))

    @property
    def traits(self) -> SpeechTraits:
        """Return the traits in the terms of the contract."""
        return SpeechTraits(
            voices=tuple(_KNOWN.get(name, Voice(name, "A voice of this checkpoint.")) for name in self.speakers),
            openai_voices={other: own for other, own in _OPENAI.items() if own in self.speakers},
            languages=tuple(code for code, name in LANGUAGES.items() if name in self.languages),
            imitates=self.kind == BASE,
            follows_instructions=self.follows_instructions,
            samples_randomly=True,
        )
