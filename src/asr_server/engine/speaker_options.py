"""The option `speakers`: what tells speakers apart on this machine. Used by `plan.py`."""

from __future__ import annotations

from collections.abc import Iterator

from asr_server.core.settings import Settings
from asr_server.engine.protocol import Option
from asr_server.speakers import package
from asr_server.speakers.package import EMBEDDED

OFF, AUTO = "off", "auto"


def option(settings: Settings) -> Option:
    """The option of that name. Its value is what `SpeakerClient` takes."""
    if settings.speakers == OFF:
        return Option("speakers", False, "", "SPEAKERS=off")
    reason = package.missing()
    if reason:
        return Option("speakers", False, "", f"SPEAKERS={settings.speakers}: {reason}")
    return Option(
        "speakers", True, EMBEDDED, "pyannote community-1 in a process of its own; loaded for the first request"
    )


def conflicts(settings: Settings) -> Iterator[str]:
    """What was asked for by name and cannot run."""
    if settings.speakers not in (OFF, AUTO, EMBEDDED):
        yield f"SPEAKERS={settings.speakers}: set it to {AUTO}, {OFF} or {EMBEDDED}."
    elif settings.speakers == EMBEDDED and (reason := package.missing()):
        yield f"SPEAKERS={EMBEDDED}: {reason}; unset it."
