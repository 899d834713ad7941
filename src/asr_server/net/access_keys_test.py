"""Keys: where a request or a socket carries one, and which are valid."""

import base64
import hmac
import random
import zlib

import pytest
from starlette.requests import HTTPConnection

from asr_server.core.conftest import Clock, raises
from asr_server.net import access
from asr_server.net.access import MAX_LIFETIME_S, ApiKeys, Caller, EphemeralKeys, mac_of, owner_of, secret_of

BEARER, API_KEY = (b"authorization", b"Bearer sk-bearer"), (b"api-key", b"sk-azure")
TOKEN = {"query_string": b"token=sk-query"}
PROTOCOLS = ["realtime", "openai-insecure-api-key.sk-protocol"]


@pytest.mark.parametrize(
    ("kind", "how", "key"),
    [
        ("http", {"headers": [API_KEY, BEARER]}, "sk-bearer"),
        ("http", {"headers": [API_KEY], **TOKEN}, "sk-azure"),
        ("http", {**TOKEN}, None),  # an address is kept in logs and histories
        ("http", {"headers": [(b"authorization", b"bEARER  sk-bearer ")]}, "sk-bearer"),
        ("http", {"headers": [(b"authorization", b"Basic sk-bearer")]}, None),
        ("http", {"headers": [(b"authorization", b"Bearer ")]}, None),
        ("http", {"headers": [(b"cookie", b"token=sk-cookie"), (b"x-api-key", b"sk-azure")]}, None),
        ("http", {"headers": [BEARER], "subprotocols": PROTOCOLS}, "sk-bearer"),
        ("websocket", {"headers": [BEARER], **TOKEN, "subprotocols": PROTOCOLS}, "sk-protocol"),
        ("websocket", {"headers": [BEARER], **TOKEN}, "sk-bearer"),
        ("websocket", {**TOKEN}, "sk-query"),
        ("websocket", {"subprotocols": ["realtime"]}, None),
    ],
)
def test_a_key_is_found_where_clients_put_it(kind, how, key):
    """A socket's own place comes before the headers, and these before its address; a page knows no other."""
    scope = {"type": kind, "headers": [], "query_string": b"", "subprotocols": [], **how}
    assert access.presented(HTTPConnection(scope)) == key


@pytest.mark.parametrize("place", [0, 12, 24, -1])
def test_every_character_of_a_key_counts(place):
    """A key that differs in a single place is another key. Its owner does not depend on the order of the keys."""
    key = "sk-2f7c1de8a90b4c55-é9e3d6b1c40aa4b0fb2c8-87d1"
    other = key[:place] + "x" + key[place:][1:]
    assert ApiKeys([key]).owner(other) is None
    assert len({ApiKeys(keys).owner(one) for keys in ([key, other], [other, key]) for one in keys}) == 2


def test_every_key_is_compared_whichever_is_presented(monkeypatch):
    """The comparison has no early end: the time taken does not say which key it was, or that it was none."""
    compared, compare = [], hmac.compare_digest
    monkeypatch.setattr(access.hmac, "compare_digest", lambda a, b: compared.append(a) or compare(a, b))
    for key in ("sk-first", "sk-last", "sk-other"):
        ApiKeys(["sk-first", "sk-middle", "sk-last"]).owner(key)
    assert len(compared) == 9


SESSION = {"type": "transcription", "audio": {"input": {"transcription": {"prompt": "Zoë, 北京"}}}}
ANN, BEN = "sk-ann", "sk-ben"


def _keys(*api_keys):
    return EphemeralKeys(api_keys, Clock(5_000.5))


def _issued(*api_keys):
    return _keys(*api_keys).issue(SESSION, 10, owner_of(ANN)).value


def _forged(session, secret):
    content = (5_010).to_bytes(8, "big") + zlib.compress(session)
    return "ek_" + base64.urlsafe_b64encode(mac_of(secret, content) + content).decode().rstrip("=")


def test_it_ends_with_the_key_that_it_was_requested_with():
    """Another key may come or go while servers are replaced, in any order of the keys."""
    value = _issued(ANN, BEN)
    assert _keys("sk-new", ANN).open(value) == Caller(owner_of(ANN), SESSION)
    with raises("invalid_api_key"):
        _keys(BEN).open(value)


def test_it_is_good_until_it_expires():
    """A key may be shown again and again. One with a longer life than any is issued with came from a wrong clock."""
    clock = Clock(5_000.5)
    keys = EphemeralKeys([ANN], clock)
    value = keys.issue(SESSION, MAX_LIFETIME_S, owner_of(ANN)).value
    for now_s in (5_000.5, 5_000 + MAX_LIFETIME_S - 0.5):
        clock.now_s = now_s
        assert keys.open(value) == keys.open(value)
    for now_s in (5_000 + MAX_LIFETIME_S, 9e9, 5_000 - 61):
        clock.now_s = now_s
        with raises("invalid_api_key"):
            keys.open(value)


def test_nothing_in_it_can_be_changed():
    """Each character of the key counts, except for the bits that base64 ignores."""
    keys, value = _keys(ANN), _issued(ANN)
    changed = [value[:at] + ("A" if value[at] != "A" else "B") + value[at + 1 :] for at in range(3, len(value) - 1)]
    changed += [value[:20] + sign + value[20:] for sign in "!. \n+"]
    for other in (*changed, "ek_", "ek_unknown", "ek_\u00e9", "ek_" + "A" * 100_000):
        with raises("invalid_api_key"):
            keys.open(other)


def test_the_digest_of_a_key_signs_nothing():
    """The name of an owner is in paths and, in part, in the log: it and an absent key must not do as secrets."""
    for secret in (owner_of(ANN).encode(), secret_of(""), secret_of(owner_of(ANN))):
        with raises("invalid_api_key"):
            _keys(ANN).open(_forged(b"{}", secret))


@pytest.mark.parametrize("session", [b"[]", b"{", b"\xff", b'{"a":' * 9_999, b" " * 1_000_000 + b"{}"])
def test_without_api_keys_a_made_up_session_is_bounded(session):
    """Anybody can sign there; what unpacks to a megabyte, is nested without end or no object is refused."""
    keys = _keys()
    assert keys.open(_forged(b'{"a":1}', secret_of(""))) == Caller("", {"a": 1})
    with raises("invalid_api_key"):
        keys.open(_forged(session, secret_of("")))


def test_it_fits_into_a_header_and_a_subprotocol():
    """Its characters and its length fit. A session gets no key if it is too long for that, or huge when unpacked, as it
    could not be opened."""
    keys = _keys(ANN)
    value = keys.issue({"prompt": "a" * 16_000}, 10, owner_of(ANN)).value
    assert value.replace("_", "").replace("-", "").isalnum()
    assert len(value) <= access.MAX_KEY_CHARS
    for prompt in (random.Random(1).randbytes(4_000).hex(), "a" * 300_000):
        with raises("invalid_value", match=r"does not fit.*session\.update"):
            keys.issue({"prompt": prompt}, 10, owner_of(ANN))
