"""The answer to `describe`: what the server can do, as Home Assistant reads it."""

from __future__ import annotations

from functools import lru_cache

from wyoming.event import Event
from wyoming.info import AsrModel, AsrProgram, Attribution, Info, TtsProgram, TtsVoice

from asr_server import __version__
from asr_server.bridge.server_state import ServerState
from asr_server.bridge.voice_names import distinct, language_tags, voice_name
from asr_server.client.speech import SpeakingVoice

_ATTRIBUTION = Attribution(name="asr-server", url="https://github.com/QwenLM/Qwen3-ASR")
_NAME = "asr-server"


# With every voice in every language it is large, and Home Assistant waits for it for one second.
@lru_cache(maxsize=1)
def info(state: ServerState) -> Event:
    """Home Assistant does not use a program that is not installed. One that speaks is there where the server speaks."""
    return Info(asr=[_hearing(state)], tts=[_speaking(state)] if state.voices else []).event()


def _hearing(state: ServerState) -> AsrProgram:
    ready = not state.problem
    model = AsrModel(
        name=_NAME,
        attribution=_ATTRIBUTION,
        installed=ready,
        description=state.problem or "The model that the server runs",
        version=__version__,
        # Home Assistant offers exactly these; its name for Cantonese is a locale of Chinese.
        languages=[*state.languages, *(["zh-HK"] if "yue" in state.languages else [])],
    )
    return AsrProgram(
        name=_NAME,
        attribution=_ATTRIBUTION,
        installed=ready,
        description=state.problem or "Self-hosted speech to text",
        version=__version__,
        models=[model],
        supports_transcript_streaming=True,
    )


def _speaking(state: ServerState) -> TtsProgram:
    return TtsProgram(
        name=_NAME,
        attribution=_ATTRIBUTION,
        installed=True,
        description="Self-hosted text to speech",
        version=__version__,
        voices=[_voice(voice, tag) for voice in distinct(state.voices) for tag in language_tags(voice.languages)],
        supports_synthesize_streaming=True,
    )


def _voice(voice: SpeakingVoice, tag: str) -> TtsVoice:
    return TtsVoice(
        name=voice_name(voice.id, tag),
        attribution=_ATTRIBUTION,
        installed=True,
        # Home Assistant shows it instead of the name.
        description=f"{voice.id}: {voice.description}",
        version=__version__,
        languages=[tag],
    )
