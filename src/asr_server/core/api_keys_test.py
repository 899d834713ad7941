"""The operator's keys."""

import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr_server.core import api_keys
from asr_server.core.api_keys import ApiKeys, fingerprint

KEYS = st.lists(st.text(min_size=1), min_size=1, max_size=6, unique=True)


@given(KEYS, st.text())
def test_a_key_is_known_exactly_if_it_is_listed(keys, presented):
    """Whatever text is presented, also one that no header could carry."""
    ring = ApiKeys(keys)
    assert (ring.owner(presented) is not None) == (presented in keys)
    assert all(ring.owner(key) for key in keys)


@pytest.mark.parametrize("place", [0, 12, 24, -1])
def test_every_character_of_a_key_counts(place):
    """Keys of one operator often begin alike: one that differs in a single place is another key."""
    key = "sk-2f7c1de8a90b4c55-9e3d6b1c40aa4b0fb2c8-87d1"
    characters = list(key)
    characters[place] = "x"
    other = "".join(characters)
    assert ApiKeys([key]).owner(other) is None
    assert ApiKeys([key, other]).owner(other) != ApiKeys([key, other]).owner(key)


@given(KEYS)
def test_owners_are_as_different_as_their_keys(keys):
    """Owners are the same after a restart, in any order of the keys."""
    owners = {ApiKeys(keys).owner(key) for key in keys}
    assert len(owners) == len(keys)
    assert owners == {ApiKeys(reversed(keys)).owner(key) for key in keys}


@pytest.mark.parametrize("presented", ["sk-first", "sk-last", "sk-other"])
def test_every_key_is_compared_whichever_is_presented(monkeypatch, presented):
    """The comparison has no early end: the time taken does not say which key it was, or that it was none."""
    compared = []
    monkeypatch.setattr(
        api_keys.hmac, "compare_digest", lambda a, b, compare=hmac.compare_digest: compared.append(a) or compare(a, b)
    )
    ApiKeys(["sk-first", "sk-middle", "sk-last"]).owner(presented)
    assert len(compared) == 3


def test_the_fingerprint_is_the_start_of_the_sha256():
    """An operator finds the key of a log line with `printf %s KEY | sha256sum`."""
    owner = ApiKeys(["sk-one"]).owner("sk-one")
    assert fingerprint(owner) == hashlib.sha256(b"sk-one").hexdigest()[:8]


def test_no_keys_are_false():
    """No request needs a key then."""
    assert not ApiKeys([])
    assert ApiKeys(["k"])
