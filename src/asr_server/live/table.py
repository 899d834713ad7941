"""The transition table of a live session: state and signal -> what to do and where to go. Data only.

Everything that depends on the state is looked up here; `session.py` asks no other question about it. A pair that is
absent cannot happen, and raises. `docs/websocket.md` shows this table, made from it.
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
    HUSHED = "quiet frame"
    ENDPOINT = "quiet frame that makes the pause long enough"
    FULL = "longest length reached"
    FLUSH = "flush"
    RESET = "reset"
    INTERRUPTED = "interrupted"
    CLOSE = "close"


class Act(Enum):
    """What a transition does, in words for the table of the docs."""

    NOTHING = "nothing"
    KEEP = "keep the frame as a possible prefix; what is too old for one is silence"
    OPEN = "open an utterance at the onset, prefix included"
    GROW = "add the frame; ask for a partial when enough speech is new"
    REST = "add the frame; once the margin behind the speech is there, ask about the utterance as if it were over"
    END = "end the utterance behind its margin; the rest may be the next one's prefix"
    CUT = "cut at the quietest point of the last third; the next utterance opens there"
    END_FULL = "as at an endpoint, in the pause that is running"
    FINISH = "end the utterance here"
    ANSWER = "answer with an empty final"
    SETTLE = "count what is kept as silence"
    DISCARD = "throw the open utterance and all that is kept away"
    IGNORE = "count the frame as discarded"
    CATCH_UP = "ask for a partial on all of the audio"


@dataclass(frozen=True, slots=True)
class Step:
    """One entry: the act, and the state after it."""

    act: Act
    next: State


_L, _S, _P, _C = State.LISTENING, State.SPEAKING, State.PAUSING, State.CLOSED

TABLE: dict[tuple[State, Signal], Step] = {
    (_L, Signal.SILENT): Step(Act.KEEP, _L),
    (_L, Signal.ONSET): Step(Act.OPEN, _S),
    (_L, Signal.FLUSH): Step(Act.ANSWER, _L),
    (_L, Signal.RESET): Step(Act.DISCARD, _L),
    (_L, Signal.INTERRUPTED): Step(Act.NOTHING, _L),
    (_L, Signal.CLOSE): Step(Act.SETTLE, _C),
    (_S, Signal.VOICED): Step(Act.GROW, _S),
    (_S, Signal.HUSHED): Step(Act.REST, _P),
    (_S, Signal.ENDPOINT): Step(Act.END, _L),
    (_S, Signal.FULL): Step(Act.CUT, _S),
    (_S, Signal.FLUSH): Step(Act.FINISH, _L),
    (_S, Signal.RESET): Step(Act.DISCARD, _L),
    (_S, Signal.INTERRUPTED): Step(Act.CATCH_UP, _S),
    (_S, Signal.CLOSE): Step(Act.FINISH, _C),
    (_P, Signal.VOICED): Step(Act.GROW, _S),
    (_P, Signal.HUSHED): Step(Act.REST, _P),
    (_P, Signal.ENDPOINT): Step(Act.END, _L),
    (_P, Signal.FULL): Step(Act.END_FULL, _L),
    (_P, Signal.FLUSH): Step(Act.FINISH, _L),
    (_P, Signal.RESET): Step(Act.DISCARD, _L),
    (_P, Signal.INTERRUPTED): Step(Act.CATCH_UP, _P),
    (_P, Signal.CLOSE): Step(Act.FINISH, _C),
    (_C, Signal.SILENT): Step(Act.IGNORE, _C),
    (_C, Signal.FLUSH): Step(Act.ANSWER, _C),
    (_C, Signal.RESET): Step(Act.NOTHING, _C),
    (_C, Signal.INTERRUPTED): Step(Act.NOTHING, _C),
    (_C, Signal.CLOSE): Step(Act.NOTHING, _C),
}
