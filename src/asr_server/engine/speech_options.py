"""The options `speech` and `speech_clone_model`: what speaks on this machine. Used by `plan.py`."""

from __future__ import annotations

import os
from collections.abc import Iterator

from asr_server.core.settings import Settings
from asr_server.engine.protocol import Option
from asr_server.engine.qwen import checkpoint
from asr_server.engine.speech.espeak import package
from asr_server.engine.speech.espeak.package import ESPEAK

OFF, AUTO = "off", "auto"


def option(settings: Settings) -> Option:
    """The option `speech`. Its value is what `registry.build_speech` takes."""
    wanted = settings.speech
    if wanted == OFF:
        return Option("speech", False, "", "SPEECH=off")
    reason = package.missing()
    if reason:
        return Option("speech", False, "", f"SPEECH={wanted}: {reason}")
    return Option("speech", True, ESPEAK, "eSpeak NG in child processes, on a thread of its own")


def conflicts(settings: Settings) -> Iterator[str]:
    """What was asked for by name and cannot run."""
    wanted = settings.speech
    if wanted == ESPEAK and (reason := package.missing()):
        yield f"SPEECH={ESPEAK}: {reason}; or unset it."
    elif wanted not in (OFF, AUTO, ESPEAK) and not os.path.isdir(wanted) and not checkpoint.is_hub_id(wanted):
        yield (
            f"SPEECH={wanted}: there is no such directory, and it is no hub id (owner/name); otherwise set it to "
            f"{AUTO}, {OFF} or {ESPEAK}."
        )
