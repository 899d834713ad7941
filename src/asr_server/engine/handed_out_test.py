"""A row that continues at another engine."""

import itertools

import numpy as np
import pytest

from asr_server.engine.handed_out import HandedOut
from asr_server.engine.protocol import Tokens, Utterance

ITEM = Utterance(np.zeros(16_000, np.float32), stream=True)
WORDS = ("turn", " on", " the", " lights")
IDS = (11, 12, 13, 14)


def _tokens(start, end):
    return Tokens(IDS[start:end], (-0.1,) * (end - start), "".join(WORDS[start:end]))


@pytest.mark.parametrize("cut", range(5))
@pytest.mark.parametrize("again", [(0, 4), (0, 1, 4), (0, 1, 2, 3, 4)])
def test_a_row_continues_with_the_tokens_that_were_handed_out(cut, again):
    """Each token is handed out once, wherever the first engine ended and however the second divides its answer, which
    begins with the prefix.
    """
    told = []
    row = HandedOut(told.append)
    for n in range(cut):
        row.hand_out(_tokens(n, n + 1))
    row.begin_again()
    assert row.resumed(ITEM).prefix == IDS[:cut]
    for start, end in itertools.pairwise(again):
        row.hand_out(_tokens(start, end))
    assert tuple(token for tokens in told for token in tokens.ids) == IDS
    assert "".join(tokens.text for tokens in told) == "".join(WORDS)
    assert sum(len(tokens.logprobs) for tokens in told) == len(IDS)
