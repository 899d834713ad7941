"""Where rows are in an arena: whatever comes, grows and leaves, each keeps its keys and values and has its room."""

from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from asr_server.engine.memory import Capacity, NoRoom
from asr_server.engine.qwen_asr.decoder import ArenaDecoder
from asr_server.engine.qwen_asr.rows import AnswerRow, RowInput
from asr_server.engine.row import KeptTokens

pytestmark = [pytest.mark.torch, pytest.mark.nightly]

TOKENS, ROWS = 400, 8
CONFIG = SimpleNamespace(num_hidden_layers=2, num_attention_heads=1, num_key_value_heads=1, head_dim=1, hidden_size=1)


def _decoder(rows=ROWS, tokens=TOKENS):
    model = SimpleNamespace(device=torch.device("cpu"), dtype=torch.float32, config=CONFIG)
    return ArenaDecoder(model, None, frozenset(), Capacity(rows, tokens * 4, 0, 4))


def _row(expected):
    return AnswerRow(key=0, budget=1, expected=expected)


def _prompt(tokens):
    return RowInput(torch.cat, torch.zeros(tokens, 1), [], torch.zeros(0, 1), tail=1)


def _written(number, tokens):
    """Keys and values of a row's first tokens, of which no two are alike."""
    numbers = number * 1000.0 + torch.arange(tokens)
    return torch.stack([numbers + layer / 4 for layer in range(2)])[:, None, :, None, None].expand(-1, 2, -1, -1, -1)


OPERATIONS = st.lists(
    st.tuples(st.sampled_from(("seat", "seat", "grow", "grow", "drop")), st.integers(0, 4), st.integers(1, 150)),
    max_size=40,
)
# The second row waits for room. Then the first leaves, and the last one has room where the others move together.
WAITING = [("seat", 0, tokens) for tokens in (80, 100, 60, 10, 10, 10)]
WAITING += [("grow", 1, 180), ("drop", 0, 1), ("seat", 0, 10), ("seat", 0, 60)]


@example([("seat", 0, TOKENS)])
@example(WAITING)
@given(OPERATIONS)
def test_each_row_keeps_what_it_holds_and_gets_its_room_where_there_is_enough(operations):
    """There is enough where all fit behind one another, with a place for padding."""
    decoder, numbers = _decoder(), {}
    for count, (operation, at, tokens) in enumerate(operations):
        row = decoder.rows[at % len(decoder.rows)] if decoder.rows else None
        if operation == "seat":
            half = tokens // 2
            seated = _row(tokens - half)
            others = sum(max(other.reserved, other.length) for other in decoder.rows)
            fits = len(decoder.rows) < ROWS and others + tokens < TOKENS
            assert decoder.fits(tokens) is fits
            if fits:
                decoder.seat(seated, _prompt(0), KeptTokens(half, _written(count, half)) if half else None)
                numbers[id(seated)], seated.input = count, None
        elif row is not None and operation == "drop":
            decoder.drop(row)
        elif row is not None:
            row.reserved = row.length + tokens
            enough = sum(max(other.reserved, other.length) for other in decoder.rows) < TOKENS
            try:
                decoder.make_room(row)
            except NoRoom:
                assert not enough
            else:
                decoder.arena.put(row.places.start, _written(numbers[id(row)], row.reserved))
                row.length = row.reserved
        ranges = sorted((row.places.start, row.places.stop) for row in decoder.rows)
        assert all(end <= begin for (_, end), (begin, _) in pairwise(ranges))
        assert all(begin >= 0 and end < TOKENS for begin, end in ranges)
        for row in decoder.rows:
            assert row.length <= len(row.places)
            assert torch.equal(decoder.copy(row, row.length).data, _written(numbers[id(row)], row.length))


@pytest.mark.parametrize("overflowed", [False, True])
def test_what_is_no_number_is_not_left_to_other_rows(overflowed):
    """NaN stays neither in the place of a row that leaves nor in the old place of a row that was moved."""
    decoder = _decoder()
    first, row = _row(1), _row(31)
    for seated in (first, row):
        decoder.seat(seated, _prompt(9))
    if overflowed:
        row.input, row.logprobs = None, [torch.nan]
    row.length = 20
    for held in decoder.arena.layer(1):
        held[row.places.start : row.places.start + 40] = torch.nan
    decoder.drop(first)
    decoder.seat(_row(340), _prompt(0))
    assert row.places == range(40)
    assert decoder.arena.layer(1)[0][40:].isfinite().all()
    decoder.drop(row)
    assert decoder.arena.layer(1)[0].isfinite().all()


def test_memory_that_no_row_has_needed_is_not_taken():
    """An arena of half a GiB on a CPU, where the system provides what is written."""
    with open("/proc/self/statm", encoding="ascii") as file:
        before = int(file.read().split()[1])
    decoder = _decoder(4, 2**25)
    decoder.seat(_row(999), _prompt(1))
    with open("/proc/self/statm", encoding="ascii") as file:
        pages = int(file.read().split()[1]) - before
    assert decoder.nbytes == 2**29
    assert pages * 4096 < 2**25
