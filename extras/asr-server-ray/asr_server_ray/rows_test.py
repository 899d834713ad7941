"""Rows that are sent again, on replicas with scripted answers."""

import asyncio
import itertools
from dataclasses import replace

import numpy as np
import pytest

from asr_server.core.errors import InvalidInput, Overloaded, TranscriptionFailed
from asr_server.engine.protocol import AlignItem, Alignment, Finish, Hypothesis, Tokens, Utterance, Written
from asr_server_ray import rows
from asr_server_ray.rows import ReplicaLost, Sender

ITEM = Utterance(np.zeros(16_000, np.float32), stream=True)
WORDS = ("turn", " on", " the", " lights")
IDS = (11, 12, 13, 14)
RESULT = Hypothesis("turn on the lights", "English", IDS, (-0.1,) * 4, Finish.END, 13, 9, 4)


class Scripted:
    """Replicas: each call gets the next of the scripts, whose exceptions are raised."""

    def __init__(self, *scripts):
        self.scripts, self.calls = list(scripts), []

    async def answers(self, call):
        self.calls.append(call)
        for answer in self.scripts.pop(0):
            await asyncio.sleep(0)
            if isinstance(answer, ReplicaLost | Overloaded):
                raise answer
            yield answer


def _tokens(start, end):
    return Tokens(IDS[start:end], (-0.1,) * (end - start), "".join(WORDS[start:end]))


def _ask(replicas, item=ITEM, **options):
    told = []
    got = asyncio.run(rows.result(replicas, Sender("app", ""), item, told.append, **options))
    return got, told


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch):
    monkeypatch.setattr(rows, "_PAUSE_S", 0)


@pytest.mark.parametrize("cut", range(5))
@pytest.mark.parametrize("again", [(0, 4), (0, 1, 4), (0, 1, 2, 3, 4)])
def test_a_row_goes_on_at_another_replica_with_the_tokens_that_were_handed_out(cut, again):
    """Each token and each character is handed out once, wherever the first replica ended and however the second
    divides its answer, which begins with the prefix."""
    first = [_tokens(n, n + 1) for n in range(cut)]
    second = [_tokens(a, b) for a, b in itertools.pairwise(again)]
    replicas = Scripted([*first, ReplicaLost("gone")], [*second, RESULT])
    got, told = _ask(replicas)
    assert got is RESULT
    assert tuple(token for tokens in told for token in tokens.ids) == IDS
    assert "".join(tokens.text for tokens in told) == RESULT.text
    assert sum(len(tokens.logprobs) for tokens in told) == len(IDS)
    assert replicas.calls[1].item.prefix == IDS[:cut]
    assert replicas.calls[1].number != replicas.calls[0].number


def test_words_that_stood_before_stay_the_prefix():
    """They are committed, and less of them was told again than they are."""
    item = replace(ITEM, prefix=IDS[:2])
    replicas = Scripted([_tokens(0, 1), ReplicaLost("gone")], [_tokens(0, 3), _tokens(3, 4), RESULT])
    _, told = _ask(replicas, item)
    assert replicas.calls[1].item.prefix == IDS[:2]
    assert tuple(token for tokens in told for token in tokens.ids) == IDS


def test_ids_replace_words_of_another_model_as_the_prefix():
    """They say the same, in tokens of this model."""
    item = replace(ITEM, prefix_text=Written("turn", "English"))
    replicas = Scripted([ReplicaLost("gone")], [_tokens(0, 2), ReplicaLost("gone")], [_tokens(0, 4), RESULT])
    _ask(replicas, item)
    assert [(call.item.prefix, call.item.prefix_text) for call in replicas.calls] == [
        ((), item.prefix_text),
        ((), item.prefix_text),
        (IDS[:2], None),
    ]


def test_a_row_without_a_result_is_sent_again():
    """Its answers ended before."""
    got, _ = _ask(Scripted([_tokens(0, 1)], [_tokens(0, 4), RESULT]))
    assert got is RESULT


def test_the_error_of_a_row_is_its_own():
    """It is not sent again."""
    replicas = Scripted([InvalidInput("bad")])
    with pytest.raises(InvalidInput):
        _ask(replicas)
    with pytest.raises(Overloaded):
        _ask(Scripted([Overloaded("busy")]))


def test_a_row_that_ends_replicas_is_given_up():
    """It may be what ends them."""
    replicas = Scripted(*[[ReplicaLost("gone")]] * 4)
    with pytest.raises(TranscriptionFailed):
        _ask(replicas)
    assert len(replicas.calls) == 3


def test_an_alignment_is_sent_again_as_it_is():
    """It has nothing to go on with."""
    item = AlignItem(np.zeros(10, np.float32), "turn on", "English")
    replicas = Scripted([ReplicaLost("gone")], [Alignment(())])
    assert _ask(replicas, item)[0] == Alignment(())
    assert [call.item for call in replicas.calls] == [item, item]
