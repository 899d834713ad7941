"""The speaker of each word: by the time of the word, with changes of speaker where a reader expects them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from asr_server.core.transcript import Word
from asr_server.features.speakers.diarization.turns import Turn
from asr_server.subtitle.alignment import merged
from asr_server.text.words import Boundary, boundary_after

# The cost of a change of speaker between two words, in milliseconds of speech that is given to the wrong speaker. Times
# of words and of turns are wrong by some 100 ms each: a change inside a sentence needs better evidence than that.
_CHANGE_MS = {Boundary.TIED: 800.0, Boundary.NONE: 400.0, Boundary.CLAUSE: 200.0, Boundary.SENTENCE: 60.0}
# After a pause of this length, a change is as likely as after a sentence.
_PAUSE_MS = 300
# Beyond this, the distance of a word from a speaker's turns makes no difference.
_FAR_MS = 2000.0
# A time before all words and turns.
_NEVER_MS = -1e12


def speakers(words: Sequence[Word], turns: Sequence[Turn]) -> list[int]:
    """Return the speaker of each word. `words` are in order; `turns` have at least one speaker.

    An aligner may put a speaker's first word before the pause, right after the previous speaker's sentence. So a word
    after a sentence, which ends none itself, gets the next speaker if the speaker changes after it at a pause.
    """
    found = _cheapest(words, turns)
    for place in range(2, len(words)):
        lone, before = words[place - 1], words[place - 2]
        pause_ms = words[place].start_ms - lone.end_ms
        if found[place] == found[place - 1] or pause_ms < max(_PAUSE_MS, lone.start_ms - before.end_ms):
            continue
        if boundary_after(before.text) is Boundary.SENTENCE and boundary_after(lone.text) is not Boundary.SENTENCE:
            found[place - 1] = found[place]
    return found


def _cheapest(words: Sequence[Word], turns: Sequence[Turn]) -> list[int]:
    """Return a speaker for each word.

    Finds the least sum of two costs by dynamic programming: the time by which words are outside of their speaker's
    turns, and the changes of speaker, which are cheap after a sentence and at a pause.
    """
    if not words:
        return []
    costs = _outside_ms(words, turns)
    count = costs.shape[1]
    total, came_from = costs[0], np.zeros(costs.shape, np.intp)
    for place in range(1, len(words)):
        pause_ms = words[place].start_ms - words[place - 1].end_ms
        boundary = Boundary.SENTENCE if pause_ms >= _PAUSE_MS else boundary_after(words[place - 1].text)
        change = total.min() + _CHANGE_MS[boundary]
        came_from[place] = np.where(total <= change, np.arange(count), total.argmin())
        total = np.minimum(total, change) + costs[place]
    found = [int(total.argmin())]
    for place in range(len(words) - 1, 0, -1):
        found.append(int(came_from[place, found[-1]]))
    return found[::-1]


def _outside_ms(words: Sequence[Word], turns: Sequence[Turn]) -> NDArray[np.float64]:
    """Return (words, speakers): each word's time outside of each speaker's turns; if all of it, plus the distance."""
    starts, ends = np.array([(w.start_ms, w.end_ms) for w in words], float).T
    outside = np.empty((len(words), max(turn.speaker for turn in turns) + 1))
    for speaker in range(outside.shape[1]):
        own = merged((turn.start_ms, turn.end_ms) for turn in turns if turn.speaker == speaker)
        speech = np.array(own, float).reshape(-1, 2)
        spoken = np.concatenate([[0.0], np.cumsum(speech[:, 1] - speech[:, 0])])
        edges, times = np.append(_NEVER_MS, speech), np.append(0.0, np.stack([spoken[:-1], spoken[1:]], axis=1))
        inside = np.interp(ends, edges, times) - np.interp(starts, edges, times)
        before, after = np.append(_NEVER_MS, speech[:, 1]), np.append(speech[:, 0], -_NEVER_MS)
        place = np.searchsorted(speech[:, 0], ends)  # the first turn that begins after the word
        distance = np.maximum(0, np.minimum(starts - before[place], after[place] - ends))
        outside[:, speaker] = np.maximum(0, ends - starts - inside) + np.minimum(distance, _FAR_MS)
    return outside
