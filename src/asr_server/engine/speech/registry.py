"""Speech engines by name. Each is imported when it is asked for, so its libraries are needed only then."""

from __future__ import annotations

from pathlib import Path

from asr_server.engine.speech.espeak.package import ESPEAK
from asr_server.engine.speech.protocol import SpeechEngine

# For tests only.
FAKE = "fake"
NAMES = (ESPEAK, FAKE)


def build(name: str, fake_script: Path | None = None) -> SpeechEngine:
    """The engine of that name, the value of the option `speech` or `speech_clone_model`."""
    if name == FAKE:
        from asr_server.engine.speech.fake import FakeSpeechEngine

        return FakeSpeechEngine(fake_script)
    from asr_server.engine.speech.espeak.engine import EspeakEngine

    return EspeakEngine()
