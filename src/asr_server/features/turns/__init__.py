"""The end of a speaker's turn, estimated from the sound of the speech by Smart Turn. docs/use/turns.md is its page.

This module imports nothing heavy: the model is loaded by the first live session.
"""

from __future__ import annotations

from collections.abc import Iterator

from asr_server.core.setting_types import Endpointing
from asr_server.engine.feature import END_OF_TURN, Asked, EndOfTurnModel, Feature
from asr_server.engine.protocol import Option


def _options(asked: Asked) -> Iterator[Option]:
    if asked.settings.endpointing is Endpointing.PAUSE:
        yield Option(END_OF_TURN, False, "", "ENDPOINTING=pause: the length of a pause alone ends an utterance")
    else:
        yield Option(END_OF_TURN, True, "smart-turn-v3.2", "live: a pause where the speaker has finished is short")


def _model() -> EndOfTurnModel:
    from asr_server.features.turns.model import SmartTurn

    return SmartTurn()


FEATURE = Feature("turns", options=_options, end_of_turn=_model)
