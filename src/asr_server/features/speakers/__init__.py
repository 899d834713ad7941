"""Speakers of recordings and live sessions, and named voices."""

from __future__ import annotations

import os
from collections.abc import Iterator

from asr_server.engine.feature import Asked, Feature
from asr_server.engine.protocol import Option
from asr_server.engine.qwen_asr.checkpoint import is_hub_id
from asr_server.features.speakers.diarization import model_source
from asr_server.features.speakers.diarization.model_source import EMBEDDED

_OFF, _AUTO = "off", "auto"
_WHEN = "in a process of its own; loaded for the first request"


def _options(asked: Asked) -> Iterator[Option]:
    """Yield the option `speakers`. Its value is the `source` of `SpeakerClient`."""
    wanted = asked.settings.speakers
    if wanted == _OFF:
        yield Option("speakers", False, "", "SPEAKERS=off")
    elif wanted not in (_AUTO, EMBEDDED):
        where = "ONNX files of a directory" if os.path.isdir(wanted) else "ONNX files of the hub, downloaded once"
        yield Option("speakers", True, wanted, f"{where}, {_WHEN}")
    elif reason := model_source.missing_package():
        yield Option("speakers", False, "", f"SPEAKERS={wanted}: {reason}")
    else:
        yield Option("speakers", True, EMBEDDED, f"pyannote community-1 {_WHEN}")


def _conflicts(asked: Asked) -> Iterator[str]:
    """Yield a sentence if the models that SPEAKERS names cannot run."""
    wanted = asked.settings.speakers
    if wanted in (_OFF, _AUTO):
        return
    if wanted == EMBEDDED:
        if reason := model_source.missing_package():
            yield f"SPEAKERS={EMBEDDED}: {reason}; unset it."
    elif os.path.isdir(wanted):
        if reason := model_source.missing_file(wanted):
            yield f"SPEAKERS={wanted}: {reason}."
    elif not is_hub_id(wanted):
        yield (
            f"SPEAKERS={wanted}: there is no such directory, and it is no hub id (owner/name); otherwise set it to "
            f"{_AUTO}, {_OFF} or {EMBEDDED}."
        )


FEATURE = Feature("speakers", options=_options, conflicts=_conflicts, server=f"{__name__}.route")
