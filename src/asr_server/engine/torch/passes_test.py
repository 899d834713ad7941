"""The places that a pass writes to, and what its tokens see. The keys are positions, so that a mix-up shows."""

import os
from pathlib import Path

import pytest
import torch

from asr_server.engine.torch.passes import Arena, AttentionShape, Layout, Pass, TokenSpan

pytestmark = pytest.mark.torch

SLOTS, COLUMNS = 4, 512


@pytest.fixture
def arena():
    made = Arena(AttentionShape(1, 2, 1, 4), SLOTS * COLUMNS, device=torch.device("cpu"), dtype=torch.float32)
    made.divide(SLOTS, COLUMNS, [])
    return made


def _run(arena, *spans):
    """Run a pass in which each token's key and value is its position."""
    ids = range(sum(span.count for span in spans)) if all(span.count == 1 for span in spans) else ()
    made = Pass(arena, Layout(arena, spans, ids))
    held = made.positions[:, None, None].float().expand(-1, 1, 4)
    made.attend(0, torch.zeros(len(held), 2, 4), held, held)
    return made


def _held(arena, slot, tokens):
    return arena.layer(0)[0, slot, 0, :tokens, 0].tolist()


@pytest.mark.parametrize("last", [126, 255, 256, 300])
def test_tokens_see_what_is_before_them_and_themselves(arena, last):
    """The rows end at different places and have different numbers of queries, and one query is padded."""
    _run(arena, TokenSpan(0, 0, last), TokenSpan(1, 0, last))
    made = _run(arena, TokenSpan(0, last, 1), TokenSpan(1, last - 3, 3))
    visible = (made._mask == 0).sum(-1)[:, 0]
    assert visible[0, 0] == last + 1
    assert visible[1, [0, 2, 4]].tolist() == [last - 2, last - 1, last]
    assert _held(arena, 0, last + 1) == list(range(last + 1))
    assert _held(arena, 1, last) == list(range(last))


@pytest.mark.parametrize("tokens", [1, 200, 256])
def test_padding_never_lies_on_a_token(arena, tokens):
    """A step of three rows is padded to four, next to a row whose prompt is not run to its end."""
    _run(arena, *(TokenSpan(slot, 0, 200) for slot in range(3)), TokenSpan(3, 0, tokens))
    made = _run(arena, *(TokenSpan(slot, 200, 1) for slot in range(3)))
    assert (made.batch, made.query, len(made.ids)) == (4, 1, 4)
    assert _held(arena, 3, tokens) == list(range(tokens))
    assert all(_held(arena, slot, 201) == list(range(201)) for slot in range(3))


def test_clearing_takes_no_memory_for_what_was_never_written():
    """Slots of half a GiB each; on a CPU the system provides what is written."""
    arena, pages = Arena(AttentionShape(1, 1, 1, 64), 2**21, device=torch.device("cpu"), dtype=torch.float32), []
    arena.divide(2, 2**20, [])
    for _ in range(2):
        pages.append(int(Path("/proc/self/statm").read_text().split()[1]))
        arena.clear(1, 1000)
    assert (pages[1] - pages[0]) * os.sysconf("SC_PAGE_SIZE") < 2**25


def test_a_new_division_keeps_what_rows_hold(arena):
    """Into longer slots, shorter ones, and back; what is no number is not left behind."""
    _run(arena, TokenSpan(0, 0, 100), TokenSpan(1, 0, 60))
    arena.layer(0)[:, 1, :, 50] = torch.nan
    for slots, columns in ((2, 1024), (8, 256), (SLOTS, COLUMNS)):
        arena.divide(slots, columns, [100, 60])
        assert _held(arena, 0, 100) == list(range(100))
        assert _held(arena, 1, 50) == list(range(50))
    arena.clear(1, 60)
    assert not arena.layer(0).isnan().any()


def test_a_token_of_the_released_models_takes_112_kib():
    """The figure that is published for both sizes."""
    assert AttentionShape(layers=28, heads=16, kv_heads=8, dim=128).token_bytes(torch.bfloat16) == 112 * 1024
