"""Speech engines by name. Each is imported when it is asked for, so its libraries are needed only then."""

from __future__ import annotations

from pathlib import Path

from asr_server.features.speech_output.engines import piper
from asr_server.features.speech_output.engines.espeak.package import ESPEAK
from asr_server.features.speech_output.engines.protocol import FAKE, SpeechEngine

NAMES = (ESPEAK, FAKE)


def build(name: str, fake_script: Path | None = None) -> tuple[SpeechEngine, ...]:
    """Return the engines of that name: one of `NAMES`, or voices of Piper."""
    if name == FAKE:
        from asr_server_fake.speech import FakeSpeechEngine

        return (FakeSpeechEngine(fake_script),)
    if piper.takes(name):
        from asr_server.features.speech_output.engines.piper.engine import PiperEngine

        return tuple(PiperEngine(voice, name) for voice in piper.voices(name))
    from asr_server.features.speech_output.engines.espeak.engine import EspeakEngine

    return (EspeakEngine(),)
