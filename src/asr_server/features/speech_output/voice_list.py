"""The answers that list voices, which a gateway gives without its worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, Field

from asr_server.features.speech_output.engines.protocol import SpeechTraits, Voice


class VoiceBody(BaseModel):
    """A voice that speaks."""

    id: str
    name: str = Field(description="The same as `id`, where other servers have it.")
    object: Literal["voice"] = "voice"
    description: str
    languages: list[str]
    alias_of: str | None = Field(None, description="The engine's voice that one of OpenAI's names stands for.")
    also_alias_of: list[str] = Field([], description="Voices of further engines that speak what this one does not.")
    licence: str | None = Field(None, description="Of what the voice was made from, as its maker says.")
    model_card: str | None = Field(None, description="What the voice's maker says about it.")


class VoiceListBody(BaseModel):
    """All voices that speak."""

    object: Literal["list"] = "list"
    data: list[VoiceBody]
    voices: list[VoiceBody] = Field(description="The same list, where Open WebUI and other clients look for it.")


def voice_list(engines: Sequence[SpeechTraits]) -> VoiceListBody:
    """Return OpenAI's names, then the engines' own. `engines`: in the order in which they are preferred."""
    own = {voice.id: _body(voice, traits) for traits in reversed(engines) for voice in traits.voices}
    ordered = [own[voice.id] for traits in engines for voice in traits.voices]
    names = sorted({name for traits in engines for name in traits.openai_voices})
    listed = [*(_alias(name, engines, own) for name in names), *ordered]
    return VoiceListBody(data=listed, voices=listed)


def model_voices(listed: VoiceListBody, model_id: str) -> list[dict[str, str]]:
    """Return the voices as Speaches lists those of a model: each name of a model that speaks has all voices."""
    return [{"model_id": model_id, "voice_id": voice.id} for voice in listed.data]


def _alias(name: str, engines: Sequence[SpeechTraits], own: dict[str, VoiceBody]) -> VoiceBody:
    """Return the voices that a name stands for: the first that speaks a language is the one that is used."""
    first, *others = [own[traits.openai_voices[name]] for traits in engines if name in traits.openai_voices]
    languages = list(dict.fromkeys(code for voice in (first, *others) for code in voice.languages))
    changed = {"id": name, "name": name, "alias_of": first.id, "languages": languages}
    return first.model_copy(update=changed | {"also_alias_of": [voice.id for voice in others]})


def _body(voice: Voice, traits: SpeechTraits) -> VoiceBody:
    return VoiceBody(
        id=voice.id,
        name=voice.id,
        description=voice.description,
        languages=list(voice.languages or traits.languages),
        licence=voice.licence or None,
        model_card=voice.model_card or None,
        alias_of=None,
        also_alias_of=[],
    )
