"""The end of a speaker's turn, estimated from the sound of the speech by Smart Turn. docs/use/turns.md is its page.

This module imports nothing heavy: the model is loaded by the first live session.
"""

from __future__ import annotations

from collections.abc import Iterator

from asr_server.core.bundled_package import installed
from asr_server.core.setting_types import Endpointing
from asr_server.engine.feature import END_OF_TURN, Asked, EndOfTurnModel, Feature
from asr_server.engine.protocol import Option

# The wheel carries the network; its code is not used.
DISTRIBUTION, VERSION = "pipecat-ai", "1.14.0"
DIRECTORY, FILE = "pipecat/audio/turn/smart_turn/data", "smart-turn-v3.2-cpu.onnx"
_MISSING = f"the package {DISTRIBUTION}=={VERSION}, which carries the model, is not installed"
_REMEDY = f"pip install --no-deps {DISTRIBUTION}=={VERSION}"


def _options(asked: Asked) -> Iterator[Option]:
    if asked.settings.endpointing is Endpointing.PAUSE:
        yield Option(END_OF_TURN, False, "", "ENDPOINTING=pause: the length of a pause alone ends an utterance")
    elif installed(DISTRIBUTION, VERSION):
        yield Option(END_OF_TURN, True, "smart-turn-v3.2", "live: a pause where the speaker has finished is short")
    else:
        yield Option(END_OF_TURN, False, "", _MISSING)


def _conflicts(asked: Asked) -> Iterator[str]:
    if asked.settings.endpointing is Endpointing.SEMANTIC and not installed(DISTRIBUTION, VERSION):
        yield f"ENDPOINTING=semantic: {_MISSING}: {_REMEDY}, or unset it."


def _model() -> EndOfTurnModel:
    from asr_server.features.turns.model import SmartTurn

    return SmartTurn(DISTRIBUTION, DIRECTORY, FILE)


FEATURE = Feature("turns", options=_options, conflicts=_conflicts, end_of_turn=_model)
