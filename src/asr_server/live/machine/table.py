"""The transition table of a live session: from a state and a signal to an action and the next state. Data only.

Everything that depends on the state is looked up here. A pair that is absent cannot happen, and raises `KeyError`.
States and signals are strings, which cache their hashes, because every frame needs a lookup.
"""

from __future__ import annotations

from enum import StrEnum

from asr_server.live.machine.events import Ending


class State(StrEnum):
    """The states of a turn: whether an utterance is open, and whether its speaker is speaking."""

    LISTENING = "listening"  # no utterance is open; the last few hundred ms are kept as the prefix of the next one
    SPEAKING = "speaking"
    PAUSING = "pausing"  # open; the silence is still too short for an endpoint
    WAITING = "waiting"  # open, between two parts: the silence is too long for one request
    CLOSED = "closed"  # takes no more audio or client actions


class Signal(StrEnum):
    """The meaning of one frame or one event."""

    SILENT = "silent frame"
    ONSET = "frame that confirms speech"
    VOICED = "voiced frame"
    PAUSED = "quiet frame"
    LONG_PAUSE = "quiet frame that makes the pause too long for one request"
    ENDPOINT = "quiet frame that completes the pause"
    FULL = "maximum length reached"
    FLUSH = "flush"
    RESET = "reset"
    INTERRUPTED = "interrupted"
    CLOSE = "close"


class TurnAction(StrEnum):
    """The effect of a transition."""

    NOTHING = "nothing"
    KEEP = "keep the frame as a possible prefix; older frames count as silence"
    OPEN = "open an utterance at the onset, including the prefix; in an open one, a new part, including the margin"
    EXTEND = "add the frame; request a partial after enough new speech"
    EXTEND_PAUSE = "add the frame; once the margin after the speech is complete, request the final in advance"
    END_PART = "end a part of the utterance after its margin and request its final; the next speech begins a new part"
    END = "end the utterance after its margin; the rest may be the prefix of the next one"
    CUT = "cut at the quietest point of the last third; the next utterance opens there"
    FINISH = "end the utterance here; in a pause after its margin"
    ANSWER_FLUSH = "answer with an empty final"
    COUNT_SILENCE = "count the kept frames as silence"
    DISCARD = "discard the open utterance and the kept frames"
    CATCH_UP = "request a partial for all of the audio"


ENDINGS = {
    Signal.ENDPOINT: Ending.PAUSE,
    Signal.FULL: Ending.CUT,
    Signal.FLUSH: Ending.FLUSH,
    Signal.CLOSE: Ending.CLOSE,
}

_L, _S, _P, _W, _C = State.LISTENING, State.SPEAKING, State.PAUSING, State.WAITING, State.CLOSED

TABLE: dict[tuple[State, Signal], tuple[TurnAction, State]] = {
    (_L, Signal.SILENT): (TurnAction.KEEP, _L),
    (_L, Signal.ONSET): (TurnAction.OPEN, _S),
    (_L, Signal.FLUSH): (TurnAction.ANSWER_FLUSH, _L),
    (_L, Signal.RESET): (TurnAction.DISCARD, _L),
    (_L, Signal.INTERRUPTED): (TurnAction.NOTHING, _L),
    (_L, Signal.CLOSE): (TurnAction.COUNT_SILENCE, _C),
    (_S, Signal.VOICED): (TurnAction.EXTEND, _S),
    (_S, Signal.PAUSED): (TurnAction.EXTEND_PAUSE, _P),
    (_S, Signal.ENDPOINT): (TurnAction.END, _L),
    (_S, Signal.FULL): (TurnAction.CUT, _S),
    (_S, Signal.FLUSH): (TurnAction.FINISH, _L),
    (_S, Signal.RESET): (TurnAction.DISCARD, _L),
    (_S, Signal.INTERRUPTED): (TurnAction.CATCH_UP, _S),
    (_S, Signal.CLOSE): (TurnAction.FINISH, _C),
    (_P, Signal.VOICED): (TurnAction.EXTEND, _S),
    (_P, Signal.PAUSED): (TurnAction.EXTEND_PAUSE, _P),
    (_P, Signal.LONG_PAUSE): (TurnAction.END_PART, _W),
    (_P, Signal.ENDPOINT): (TurnAction.END, _L),
    (_P, Signal.FULL): (TurnAction.FINISH, _L),
    (_P, Signal.FLUSH): (TurnAction.FINISH, _L),
    (_P, Signal.RESET): (TurnAction.DISCARD, _L),
    (_P, Signal.INTERRUPTED): (TurnAction.CATCH_UP, _P),
    (_P, Signal.CLOSE): (TurnAction.FINISH, _C),
    (_W, Signal.SILENT): (TurnAction.KEEP, _W),
    (_W, Signal.ONSET): (TurnAction.OPEN, _S),
    (_W, Signal.ENDPOINT): (TurnAction.END, _L),
    (_W, Signal.FULL): (TurnAction.FINISH, _L),
    (_W, Signal.FLUSH): (TurnAction.FINISH, _L),
    (_W, Signal.RESET): (TurnAction.DISCARD, _L),
    (_W, Signal.INTERRUPTED): (TurnAction.NOTHING, _W),
    (_W, Signal.CLOSE): (TurnAction.FINISH, _C),
}
