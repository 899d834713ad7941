"""The options `speech` and `speech_clone_model`: what speaks on this machine. Used by `plan.py`."""

from __future__ import annotations

import os
from collections.abc import Iterator

from asr_server.core.settings import Settings
from asr_server.engine.protocol import Option
from asr_server.engine.qwen import checkpoint
from asr_server.engine.speech.espeak import package
from asr_server.engine.speech.espeak.package import ESPEAK
from asr_server.engine.speech.registry import FAKE, NAMES

_SCRIPTED = "tones by a script; for tests only"

OFF, AUTO = "off", "auto"


def options(settings: Settings) -> Iterator[Option]:
    """Their values are what `speech.registry.build` takes."""
    yield _speech(settings)
    if settings.speech_clone_model:
        yield Option("speech_clone_model", True, settings.speech_clone_model, _SCRIPTED)
    else:
        yield Option("speech_clone_model", False, "", "not set; no voice is imitated")


def conflicts(settings: Settings) -> Iterator[str]:
    """What was asked for by name and cannot run."""
    wanted, clone = settings.speech, settings.speech_clone_model
    if wanted == ESPEAK and (reason := package.missing()):
        yield f"SPEECH={ESPEAK}: {reason}; or unset it."
    elif wanted not in (OFF, AUTO, *NAMES) and not os.path.isdir(wanted) and not checkpoint.is_hub_id(wanted):
        yield (
            f"SPEECH={wanted}: there is no such directory, and it is no hub id (owner/name); otherwise set it to "
            f"{AUTO}, {OFF} or {ESPEAK}."
        )
    if clone and clone != FAKE:
        yield f"SPEECH_CLONE_MODEL={clone}: this version has no engine that imitates voices; unset it."
    elif clone and not _speech(settings).active:
        yield f"SPEECH_CLONE_MODEL={clone} needs an engine for the other voices, and SPEECH={wanted} has none."


def is_scripted(settings: Settings) -> bool:
    """Whether a speech engine has a script."""
    return FAKE in (settings.speech, settings.speech_clone_model)


def _speech(settings: Settings) -> Option:
    wanted = settings.speech
    if wanted == OFF:
        return Option("speech", False, "", "SPEECH=off")
    if wanted == FAKE:
        return Option("speech", True, FAKE, _SCRIPTED)
    reason = package.missing()
    if reason:
        return Option("speech", False, "", f"SPEECH={wanted}: {reason}")
    return Option("speech", True, ESPEAK, "eSpeak NG in child processes, on a thread of its own")
