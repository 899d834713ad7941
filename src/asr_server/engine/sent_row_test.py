"""A row that continues in another process."""

import itertools

import numpy as np
import pytest

from asr_server.engine.protocol import Tokens, Utterance
from asr_server.engine.remote import SentRow
from asr_server.schedule.job import Job

WORDS = ("turn", " on", " the", " lights")
IDS = (11, 12, 13, 14)


def _tokens(start, end):
    return Tokens(IDS[start:end], (-0.1,) * (end - start), "".join(WORDS[start:end]))


@pytest.mark.parametrize("cut", range(5))
@pytest.mark.parametrize("again", [(0, 4), (0, 1, 4), (0, 1, 2, 3, 4)])
def test_a_row_continues_with_the_tokens_that_were_passed_on(cut, again):
    """Each token is passed on once, wherever the first engine ended and however the second divides its answer."""
    told = []
    row = SentRow(Job(Utterance(np.zeros(16_000, np.float32), stream=True), on_delta=told.append))
    for n in range(cut):
        row.pass_on(_tokens(n, n + 1))
    row.begin_again()
    assert row.item().prefix == IDS[:cut]
    for start, end in itertools.pairwise(again):
        row.pass_on(_tokens(start, end))
    assert tuple(token for tokens in told for token in tokens.ids) == IDS
    assert "".join(tokens.text for tokens in told) == "".join(WORDS)
    assert sum(len(tokens.logprobs) for tokens in told) == len(IDS)
