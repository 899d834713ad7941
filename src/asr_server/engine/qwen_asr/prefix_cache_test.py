"""The store of what live sessions keep between two partials: its bound, and who leaves first."""

import numpy as np
import pytest

from asr_server.engine.qwen_asr.prefix_cache import LEAST_PROMPT_TOKENS, CachedPrefix, PrefixCache
from asr_server.engine.row import KeptTokens

STATE_BYTES = 4_000


def _state(nbytes=STATE_BYTES):
    nothing, kept = np.zeros(0, np.float32), KeptTokens(1, np.zeros(nbytes, np.uint8))
    return CachedPrefix((), 0, nothing, kept, nothing, lowest=0.0, floor=0.0)


@pytest.fixture
def store():
    return PrefixCache(limit_bytes=3 * STATE_BYTES)


def _held(store, *keys):
    """Return which of the keys are kept; this uses them all."""
    assert store.held_bytes == len(store) * STATE_BYTES
    return [key for key in keys if store.get(key) is not None]


@pytest.mark.parametrize(("events", "kept"), [("abcAd", "acd"), ("abcAde", "ade"), ("abca", "abc"), ("abcad", "acd")])
def test_the_least_recently_used_session_leaves_first(store, events, kept):
    """A letter puts a state of that session, a capital asks for it. A new state takes the place of the old one."""
    for event in events:
        if event.islower():
            store.put(event, _state())
        else:
            store.get(event.lower())
    assert _held(store, *"abcde") == list(kept)


def _put_prompt(store, ids):
    """Put a prompt that is computed for the second time; returns of how many tokens a copy was asked for."""
    copies = []
    for _ in range(2):
        store.put_prompt(ids, lambda tokens: copies.append(tokens) or _state().kv)
    return copies


def test_prompts_push_out_no_session(store):
    """Prompts leave first, also the newest one; the shortest are not kept, since copying takes as long as running."""
    prompts = [(number,) * 1_000 for number in range(3)]
    for key in "ab":
        store.put(key, _state())
    for ids in prompts:
        _put_prompt(store, ids)
    assert _held(store, *"ab", *prompts) == ["a", "b", prompts[2]]
    store.put("c", _state())
    _put_prompt(store, prompts[0])
    assert _held(store, *"abc", *prompts) == ["a", "b", "c"]
    assert _put_prompt(store, (1,) * (LEAST_PROMPT_TOKENS - 1)) == []


def test_a_state_that_is_too_large_is_not_kept_and_pushes_nobody_out(store):
    store.put("a", _state())
    store.put("b", _state(3 * STATE_BYTES + 1))
    assert _held(store, *"ab") == ["a"]
