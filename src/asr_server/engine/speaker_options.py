"""The option `speakers`: the way to distinguish speakers on this machine. Used by `plan.py`."""

from __future__ import annotations

import os
from collections.abc import Iterator

from asr_server.core.settings import Settings
from asr_server.engine.protocol import Option
from asr_server.engine.qwen import checkpoint
from asr_server.speakers import model_source, package
from asr_server.speakers.package import EMBEDDED

OFF, AUTO = "off", "auto"
_WHEN = "in a process of its own; loaded for the first request"


def option(settings: Settings) -> Option:
    """The option of that name. Its value is what `SpeakerClient` takes."""
    wanted = settings.speakers
    if wanted == OFF:
        return Option("speakers", False, "", "SPEAKERS=off")
    if wanted not in (AUTO, EMBEDDED):
        where = "ONNX files of a directory" if os.path.isdir(wanted) else "ONNX files of the hub, downloaded once"
        return Option("speakers", True, wanted, f"{where}, {_WHEN}")
    reason = package.missing()
    if reason:
        return Option("speakers", False, "", f"SPEAKERS={wanted}: {reason}")
    return Option("speakers", True, EMBEDDED, f"pyannote community-1 {_WHEN}")


def conflicts(settings: Settings) -> Iterator[str]:
    """Yield a sentence for what was asked for by name and cannot run."""
    wanted = settings.speakers
    if wanted in (OFF, AUTO):
        return
    if wanted == EMBEDDED:
        if reason := package.missing():
            yield f"SPEAKERS={EMBEDDED}: {reason}; unset it."
    elif os.path.isdir(wanted):
        if reason := model_source.missing(wanted):
            yield f"SPEAKERS={wanted}: {reason}."
    elif not checkpoint.is_hub_id(wanted):
        yield (
            f"SPEAKERS={wanted}: there is no such directory, and it is no hub id (owner/name); otherwise set it to "
            f"{AUTO}, {OFF} or {EMBEDDED}."
        )
