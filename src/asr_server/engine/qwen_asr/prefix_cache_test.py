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


def test_a_prompt_is_kept_for_a_quarter_of_an_hour():
    """A prompt is that of many recordings; a session that asks for nothing in a minute is over."""
    now_s = [0.0]
    store = PrefixCache(limit_bytes=3 * STATE_BYTES, clock=lambda: now_s[0])
    ids, copies = tuple(range(64)), []
    store.put("a", _state())
    for _ in range(3):
        store.put_prompt(ids, lambda tokens: copies.append(tokens) or torch.zeros(tokens))
    assert copies == [64]
    for at_s, kept in ((59.0, ["a", ids]), (61.0, [ids]), (899.0, [ids]), (901.0, [])):
        now_s[0] = at_s
        store.forget_unused()
        assert list(store._cached) == kept


def test_prompts_push_out_no_session():
    """Prompts leave first, also the newest one."""
    store = PrefixCache(limit_bytes=3 * STATE_BYTES, clock=lambda: 0.0)
    prompts = [(number,) * 1_000 for number in range(3)]
    for key in "ab":
        store.put(key, _state())
    for ids in (prompts[0], *prompts):
        for _ in range(2):
            store.put_prompt(ids, torch.zeros)
    assert list(store._cached) == ["a", "b", prompts[2]]
    store.put("c", _state())
    store.put_prompt(prompts[0], torch.zeros)
    store.put_prompt(prompts[0], torch.zeros)
    assert list(store._cached) == ["a", "b", "c"]


def test_a_state_that_is_too_large_is_not_kept_and_pushes_nobody_out(store):
    """The state's own session is slower, and no other."""
    store.put("a", _state())
    large = _state()
    large.log10_mel = torch.zeros(STATE_BYTES)
    store.put("b", large)
    assert _stored(store) == ["a"]
    assert store.held_bytes == STATE_BYTES
