"""Which speaker said each word: by the time of the word, with changes of speaker where a reader expects them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from asr_server.core.transcript import Word
from asr_server.speakers.turns import Turn
from asr_server.text import boundary
from asr_server.text.boundary import Boundary

# What a change of speaker between two words costs, in milliseconds of speech that is given to the wrong speaker. Times
# of words and of turns are wrong by some 100 ms each: a change inside a sentence needs better evidence than that.
_CHANGE_MS = {Boundary.TIED: 800.0, Boundary.NONE: 400.0, Boundary.CLAUSE: 200.0, Boundary.SENTENCE: 60.0}
# Between words with such a pause, a change is as likely as after a sentence.
_PAUSE_MS = 300
# A word is not known to be outside of a speaker's turns by more than this.
_FAR_MS = 2000.0


def speakers(words: Sequence[Word], turns: Sequence[Turn]) -> list[int]:
    """The speaker of each word. `words` in order; `turns` of at least one speaker.

    Finds the least sum of two costs by dynamic programming: the time by which words are outside of their speaker's
    turns, and the changes of speaker, which are cheap after a sentence and at a pause.
    """
    if not words:
        return []
    costs = _outside_ms(words, turns)
    count = costs.shape[1]
    total, came_from = costs[0], np.zeros(costs.shape, np.intp)
    for place in range(1, len(words)):
        change = total.min() + _change_ms(words[place - 1], words[place])
        came_from[place] = np.where(total <= change, np.arange(count), total.argmin())
        total = np.minimum(total, change) + costs[place]
    found = [int(total.argmin())]
    for place in range(len(words) - 1, 0, -1):
        found.append(int(came_from[place, found[-1]]))
    return found[::-1]


def _change_ms(before: Word, after: Word) -> float:
    kind = boundary.after(before.text)
    return _CHANGE_MS[Boundary.SENTENCE if after.start_ms - before.end_ms >= _PAUSE_MS else kind]


def _outside_ms(words: Sequence[Word], turns: Sequence[Turn]) -> NDArray[np.float64]:
    """(words, speakers): how much of each word is outside of each speaker's turns; if all of it, also how far."""
    starts, ends = np.array([w.start_ms for w in words], float), np.array([w.end_ms for w in words], float)
    outside = np.empty((len(words), max(turn.speaker for turn in turns) + 1))
    for speaker in range(outside.shape[1]):
        own = [turn for turn in turns if turn.speaker == speaker]
        inside, distance = np.zeros(len(words)), np.full(len(words), _FAR_MS)
        for turn in own:
            inside += np.maximum(0, np.minimum(ends, turn.end_ms) - np.maximum(starts, turn.start_ms))
            distance = np.minimum(distance, np.maximum(0, np.maximum(turn.start_ms - ends, starts - turn.end_ms)))
        outside[:, speaker] = np.maximum(0, ends - starts - inside) + distance
    return outside
