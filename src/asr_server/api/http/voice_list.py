"""The answer of `GET /v1/audio/voices`, which a gateway gives without its worker."""

from __future__ import annotations

from asr_server.api.http.schemas import VoiceBody, VoiceListBody
from asr_server.engine.speech.protocol import SpeechTraits, Voice


def voice_list(traits: SpeechTraits) -> VoiceListBody:
    """OpenAI's names, then the engine's own."""
    own = {voice.id: _body(voice, traits) for voice in traits.voices}
    openai = [
        own[engine].model_copy(update={"id": name, "name": name, "alias_of": engine})
        for name, engine in sorted(traits.openai_voices.items())
    ]
    listed = [*openai, *own.values()]
    return VoiceListBody(data=listed, voices=listed)


def _body(voice: Voice, traits: SpeechTraits) -> VoiceBody:
    languages = list(voice.languages or traits.languages)
    return VoiceBody(id=voice.id, name=voice.id, description=voice.description, languages=languages, alias_of=None)
