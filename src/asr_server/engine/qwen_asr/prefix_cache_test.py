"""The store of what live sessions keep between two partials: its bound, and who leaves first."""

import numpy as np
import pytest
import torch

from asr_server.engine.qwen_asr.prefix_cache import CachedPrefix, PrefixCache

pytestmark = pytest.mark.torch

STATE_BYTES = 4_000


def _state():
    state = torch.zeros(STATE_BYTES // 4)
    nothing = np.zeros(0, np.float32)
    return CachedPrefix((), 0, 0, nothing, state, lowest=0.0, floor=0.0, windows=1, kv=torch.zeros(0))


@pytest.fixture
def store():
    """Return a cache with room for three states."""
    return PrefixCache(limit_bytes=3 * STATE_BYTES, clock=lambda: 0.0)


def _stored(store):
    return [key for key in "abcdef" if key in store._cached]


def test_the_least_recently_used_session_leaves_first(store):
    """The one that asks at every second keeps its state; a new one does not push itself out."""
    for key in "abc":
        store.put(key, _state())
    store.get("a")
    store.put("d", _state())
    assert _stored(store) == ["a", "c", "d"]
    store.put("e", _state())
    assert _stored(store) == ["a", "d", "e"]
    assert store.evictions == 2


def test_a_new_state_of_a_session_takes_the_place_of_the_old_one(store):
    """The state counts once, and the session is the last to leave."""
    for key in "abca":
        store.put(key, _state())
    assert (len(store), store.held_bytes, store.evictions) == (3, 3 * STATE_BYTES, 0)
    store.put("d", _state())
    assert _stored(store) == ["a", "c", "d"]


def test_a_state_that_is_too_large_is_not_kept_and_pushes_nobody_out(store):
    """The state's own session is slower, and no other."""
    store.put("a", _state())
    large = _state()
    large.log10_mel = torch.zeros(STATE_BYTES)
    store.put("b", large)
    assert _stored(store) == ["a"]
    assert store.held_bytes == STATE_BYTES
