"""The names of voices for Wyoming clients: `nova` speaks any language, `nova@de` German.

Home Assistant lets its users pick a language and then one of its voices, and sends only the name of the voice. So the
name has to say the language.
"""

from __future__ import annotations

from functools import lru_cache

from wyoming.tts import SynthesizeVoice

from asr_server.client.speech import SpeakingVoice, SpeechFields
from asr_server.core.errors import AsrError
from asr_server.text import languages

_SEPARATOR = "@"


def voice_name(voice: str, language: str) -> str:
    """Return the name that `speech_fields` splits again."""
    return f"{voice}{_SEPARATOR}{language}"


@lru_cache(maxsize=8)  # each call looks up a hundred languages, and most voices have the same ones
def language_tags(codes: tuple[str, ...]) -> tuple[str, ...]:
    """Return the BCP 47 tags of the languages that requests can name, each once: `pt-BR` for `pt-br`."""
    tags: dict[str, None] = {}
    for code in codes:
        try:
            tags[languages.find(code).tag] = None
        except AsrError:  # a language of the engine that is not in Unicode's list
            continue
    return tuple(tags)


def distinct(voices: tuple[SpeakingVoice, ...]) -> list[SpeakingVoice]:
    """Return the voices with OpenAI's names, which other engines have too, and the engine's own voices without one."""
    named = {name for voice in voices for name in (voice.alias_of, *voice.also_alias_of)}
    return [voice for voice in voices if voice.alias_of or voice.id not in named]


def speech_fields(voice: SynthesizeVoice | None, language: str) -> SpeechFields:
    """Return the fields that the client states. `language`: used if it states none; "" for the language of the script.

    Raises TypeError for fields that are not text.
    """
    fields = SpeechFields()
    voice = voice or SynthesizeVoice()
    if not all(isinstance(value, str | None) for value in (voice.name, voice.language, voice.speaker)):
        raise TypeError("voice")
    name, _, stated = (voice.name or "").partition(_SEPARATOR)
    if voice.speaker or name:
        fields["voice"] = voice.speaker or name
    if stated := stated or voice.language or language:
        fields["language"] = stated
    return fields
