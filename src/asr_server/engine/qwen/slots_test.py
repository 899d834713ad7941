"""The buffer of keys and values: what a pass writes where. The numbers are positions, so that a mix-up shows."""

from types import SimpleNamespace

import pytest
import torch

from asr_server.engine.qwen.capacity import ROW_TOKENS, Capacity
from asr_server.engine.qwen.decoder import SlotDecoder
from asr_server.engine.qwen.slots import BUCKET_TOKENS, PADDING, SlotCache

pytestmark = pytest.mark.torch

CONFIG = SimpleNamespace(num_hidden_layers=1, num_key_value_heads=1, head_dim=1)
PADDED = -7.0


@pytest.fixture
def cache():
    made = SlotCache(CONFIG, device=torch.device("cpu"), dtype=torch.float32)
    made.reserve(2, 2 * BUCKET_TOKENS, keep=0)
    return made


def _pass(cache, positions):
    """One pass over slots 0 and up in which each token's key is its position, and that of padding `PADDED`."""
    where = torch.tensor(positions)
    mask = cache.aim(0, where)
    states = where.float().where(where != PADDING, PADDED)[:, None, :, None]
    keys, values = cache.update(states, states, 0)
    assert torch.equal(keys, values)
    return mask[:, 0], keys[:, 0, :, 0]


@pytest.mark.parametrize("last", [126, 127, 128, 200])
def test_padding_never_lies_on_a_token(cache, last):
    """Also where a row ends exactly on a bucket, beside a row with a draft that makes the pass three tokens long."""
    _pass(cache, [[*range(last)], [*range(last)]])
    mask, keys = _pass(cache, [[last, PADDING, PADDING], [last - 3, last - 2, last - 1]])
    assert keys[0, mask[0, 0]].tolist() == list(range(last + 1))
    assert keys[1, mask[1, 2]].tolist() == list(range(last))


@pytest.mark.parametrize("tokens", [ROW_TOKENS - 1, ROW_TOKENS, ROW_TOKENS + 1])
def test_every_row_leaves_a_column_for_padding(tokens):
    """A row of a whole number of buckets takes one more: memory for two rows without it has no room for both."""
    head = SimpleNamespace(weight=torch.zeros(1))
    text = SimpleNamespace(config=SimpleNamespace(**vars(CONFIG)))
    exact = Capacity(rows=2, rows_bytes=2 * ROW_TOKENS, prefix_cache_bytes=0, token_bytes=1)
    decoder = SlotDecoder(text, head, frozenset(), exact)
    assert decoder.fits(2, tokens) is (tokens < ROW_TOKENS)
