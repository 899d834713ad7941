"""Ephemeral keys."""

import time

import pytest

from asr_server.api.realtime import ephemeral_keys
from asr_server.api.realtime.config import ServerDefaults
from asr_server.api.realtime.ephemeral_keys import EphemeralKeys
from asr_server.core.errors import InvalidKey
from asr_server.live.events import TurnConfig
from asr_server.service.catalog import Catalog

CONFIG = ServerDefaults(Catalog("demo"), TurnConfig()).initial()


class Clock:
    """A time that is set."""

    now_s = 1_000.0

    def __call__(self):
        return self.now_s


def test_a_key_is_good_until_it_expires(monkeypatch):
    """As often as it is shown, and not a second longer, whatever the clock says on the wall."""
    clock = Clock()
    monkeypatch.setattr(time, "time", lambda: 5_000.5)
    keys = EphemeralKeys(clock)
    key = keys.issue(CONFIG, 10)
    assert key.expires_at == 5_010
    monkeypatch.setattr(time, "time", lambda: 9e9)
    assert keys.find(key.value) is keys.find(key.value) is key
    clock.now_s = 1_010.0
    with pytest.raises(InvalidKey):
        keys.find(key.value)


def test_a_key_that_was_not_given_out_is_refused():
    """Whatever it looks like."""
    keys = EphemeralKeys()
    keys.issue(CONFIG, 10)
    for presented in ("ek_" + "0" * 48, "ek_", "", "sk-anything"):
        with pytest.raises(InvalidKey):
            keys.find(presented)


def test_keys_differ_and_fit_a_subprotocol():
    """Only characters that a header token may have."""
    keys = EphemeralKeys()
    values = {keys.issue(CONFIG, 10).value for _ in range(100)}
    assert len(values) == 100
    assert all(value.replace("_", "").isalnum() for value in values)


def test_who_has_the_most_keys_loses_the_oldest(monkeypatch):
    """One caller that asks for them without end does not take those of others."""
    monkeypatch.setattr(ephemeral_keys, "_KEPT", 10)
    keys = EphemeralKeys()
    one = keys.issue(CONFIG, 10, "ben")
    many = [keys.issue(CONFIG, 10, "ann") for _ in range(30)]
    assert keys.find(one.value) is one
    assert keys.find(many[-9].value)
    with pytest.raises(InvalidKey):
        keys.find(many[-10].value)
