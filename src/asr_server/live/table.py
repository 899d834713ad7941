"""The transition table of a live session: from a state and a signal to an action and the next state. Data only.

Everything that depends on the state is looked up here. A pair that is absent cannot happen, and raises `KeyError`.
`docs/websocket.md` shows this table.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class State(Enum):
    """Whether an utterance is open, and whether its speaker is speaking."""

    LISTENING = "listening"  # none is open; the last few hundred milliseconds are kept as the prefix of the next
    SPEAKING = "speaking"
    PAUSING = "pausing"  # open, and silent for less than an endpoint takes
    CLOSED = "closed"


class Signal(Enum):
    """What one frame or one event means."""

    SILENT = "silent frame"
    ONSET = "frame that makes speech certain"
    VOICED = "voiced frame"
    PAUSED = "quiet frame"
    ENDPOINT = "quiet frame that makes the pause long enough"
    FULL = "longest length reached"
    FLUSH = "flush"
    RESET = "reset"
    INTERRUPTED = "interrupted"
    CLOSE = "close"


class TurnAction(Enum):
    """What a transition does, in words for the table of the docs."""

    NOTHING = "nothing"
    KEEP = "keep the frame as a possible prefix; what is too old for one is silence"
    OPEN = "open an utterance at the onset, prefix included"
    EXTEND = "add the frame; ask for a partial when enough speech is new"
    EXTEND_PAUSE = (
        "add the frame; once the margin behind the speech is there, ask about the utterance as if it were over"
    )
    END = "end the utterance behind its margin; the rest may be the next one's prefix"
    CUT = "cut at the quietest point of the last third; the next utterance opens there"
    END_FULL = "as at an endpoint, in the pause that is running"
    FINISH = "end the utterance here"
    ANSWER_FLUSH = "answer with an empty final"
    COUNT_SILENCE = "count what is kept as silence"
    DISCARD = "throw the open utterance and all that is kept away"
    IGNORE = "count the frame as discarded"
    CATCH_UP = "ask for a partial on all of the audio"


@dataclass(frozen=True, slots=True)
class Step:
    """One entry: the action, and the state after it."""

    action: TurnAction
    next: State


_L, _S, _P, _C = State.LISTENING, State.SPEAKING, State.PAUSING, State.CLOSED

TABLE: dict[tuple[State, Signal], Step] = {
    (_L, Signal.SILENT): Step(TurnAction.KEEP, _L),
    (_L, Signal.ONSET): Step(TurnAction.OPEN, _S),
    (_L, Signal.FLUSH): Step(TurnAction.ANSWER_FLUSH, _L),
    (_L, Signal.RESET): Step(TurnAction.DISCARD, _L),
    (_L, Signal.INTERRUPTED): Step(TurnAction.NOTHING, _L),
    (_L, Signal.CLOSE): Step(TurnAction.COUNT_SILENCE, _C),
    (_S, Signal.VOICED): Step(TurnAction.EXTEND, _S),
    (_S, Signal.PAUSED): Step(TurnAction.EXTEND_PAUSE, _P),
    (_S, Signal.ENDPOINT): Step(TurnAction.END, _L),
    (_S, Signal.FULL): Step(TurnAction.CUT, _S),
    (_S, Signal.FLUSH): Step(TurnAction.FINISH, _L),
    (_S, Signal.RESET): Step(TurnAction.DISCARD, _L),
    (_S, Signal.INTERRUPTED): Step(TurnAction.CATCH_UP, _S),
    (_S, Signal.CLOSE): Step(TurnAction.FINISH, _C),
    (_P, Signal.VOICED): Step(TurnAction.EXTEND, _S),
    (_P, Signal.PAUSED): Step(TurnAction.EXTEND_PAUSE, _P),
    (_P, Signal.ENDPOINT): Step(TurnAction.END, _L),
    (_P, Signal.FULL): Step(TurnAction.END_FULL, _L),
    (_P, Signal.FLUSH): Step(TurnAction.FINISH, _L),
    (_P, Signal.RESET): Step(TurnAction.DISCARD, _L),
    (_P, Signal.INTERRUPTED): Step(TurnAction.CATCH_UP, _P),
    (_P, Signal.CLOSE): Step(TurnAction.FINISH, _C),
    (_C, Signal.SILENT): Step(TurnAction.IGNORE, _C),
    (_C, Signal.FLUSH): Step(TurnAction.ANSWER_FLUSH, _C),
    (_C, Signal.RESET): Step(TurnAction.NOTHING, _C),
    (_C, Signal.INTERRUPTED): Step(TurnAction.NOTHING, _C),
    (_C, Signal.CLOSE): Step(TurnAction.NOTHING, _C),
}
