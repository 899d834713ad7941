"""Ephemeral keys."""

import base64
import random
import zlib

import pytest

from asr_server.core.api_keys import owner_of
from asr_server.core.errors import InvalidKey, InvalidValue
from asr_server.net.ephemeral_keys import MAX_KEY_CHARS, MAX_LIFETIME_S, EphemeralKeys, OpenedSession, _mac, _secret

SESSION = {"type": "transcription", "audio": {"input": {"transcription": {"prompt": "Zoë, 北京"}}}}
ANN, BEN = "sk-ann", "sk-ben"


class Clock:
    """A time that is set."""

    now_s = 5_000.5

    def __call__(self):
        return self.now_s


def _issued(*api_keys):
    return EphemeralKeys(api_keys, Clock()).issue(SESSION, 10, owner_of(ANN))


def _forged(session, secret):
    content = (5_010).to_bytes(8, "big") + zlib.compress(session)
    return "ek_" + base64.urlsafe_b64encode(_mac(secret, content) + content).decode().rstrip("=")


def test_every_server_with_the_same_keys_opens_it():
    """Wherever it was issued, in whatever order the keys stand; the owner is that of the key that asked for it."""
    key = _issued(ANN, BEN)
    assert key.expires_at == 5_010
    assert EphemeralKeys([BEN, ANN], Clock()).open(key.value) == OpenedSession(owner_of(ANN), SESSION)


def test_it_ends_with_the_key_that_it_was_requested_with():
    """Another key may come or go while servers are replaced."""
    key = _issued(ANN, BEN)
    assert EphemeralKeys([ANN, "sk-new"], Clock()).open(key.value).owner == owner_of(ANN)
    with pytest.raises(InvalidKey):
        EphemeralKeys([BEN], Clock()).open(key.value)


def test_it_is_good_until_it_expires():
    """As often as it is shown. One that would be good for longer than any is issued for was issued by a wrong clock."""
    clock = Clock()
    keys = EphemeralKeys([ANN], clock)
    value = keys.issue(SESSION, MAX_LIFETIME_S, owner_of(ANN)).value
    for now_s in (5_000.5, 5_000 + MAX_LIFETIME_S - 0.5):
        clock.now_s = now_s
        assert keys.open(value) == keys.open(value)
    for now_s in (5_000 + MAX_LIFETIME_S, 9e9, 5_000 - 61):
        clock.now_s = now_s
        with pytest.raises(InvalidKey):
            keys.open(value)


def test_nothing_in_it_can_be_changed():
    """Each character counts, but for bits that base64 does not use."""
    keys, value = EphemeralKeys([ANN], Clock()), _issued(ANN).value
    for at in range(3, len(value) - 1):
        other = value[:at] + ("A" if value[at] != "A" else "B") + value[at + 1 :]
        with pytest.raises(InvalidKey):
            keys.open(other)


@pytest.mark.parametrize("presented", ["ek_", "ek_unknown", "ek_" + "0" * 48, "ek_\u00e9", "ek_" + "A" * 100_000])
def test_what_was_not_issued_is_refused(presented):
    """Whatever it looks like."""
    with pytest.raises(InvalidKey):
        EphemeralKeys([ANN], Clock()).open(presented)


def test_the_digest_of_a_key_signs_nothing():
    """The name of an owner is in paths and, in part, in the log: it and an absent key must not do as secrets."""
    for secret in (owner_of(ANN).encode(), _secret(""), _secret(owner_of(ANN))):
        with pytest.raises(InvalidKey):
            EphemeralKeys([ANN], Clock()).open(_forged(b"{}", secret))


@pytest.mark.parametrize("session", [b"[]", b"{", b"\xff", b'{"a":' * 9_999, b" " * 1_000_000 + b"{}"])
def test_without_api_keys_a_made_up_session_is_bounded(session):
    """Anybody can sign there; what unpacks to a megabyte, is nested without end or no object is refused."""
    keys = EphemeralKeys([], Clock())
    assert keys.open(_forged(b'{"a":1}', _secret(""))) == OpenedSession("", {"a": 1})
    with pytest.raises(InvalidKey):
        keys.open(_forged(session, _secret("")))


def test_it_fits_into_a_header_and_a_subprotocol():
    """By its characters and its length; a session that is too long for that is refused."""
    keys = EphemeralKeys([ANN], Clock())
    value = keys.issue({"prompt": "a" * 16_000}, 10, owner_of(ANN)).value
    assert value.replace("_", "").replace("-", "").isalnum()
    assert len(value) <= MAX_KEY_CHARS
    noise = random.Random(1).randbytes(4_000).hex()
    with pytest.raises(InvalidValue, match=r"session\.update"):
        keys.issue({"prompt": noise}, 10, owner_of(ANN))


def test_a_session_that_is_huge_unpacked_gets_no_key():
    """It would be small enough as a key, and could not be opened."""
    keys = EphemeralKeys([ANN], Clock())
    with pytest.raises(InvalidValue, match="does not fit"):
        keys.issue({"prompt": "a" * 300_000}, 10, owner_of(ANN))
