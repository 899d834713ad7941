"""Which pages and which host names may call."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr_server.core.conftest import raises
from asr_server.core.errors import InvalidInput
from asr_server.net.access import Origins

LISTED = Origins(frozenset({"https://app.example.com", "http://localhost:3000", "chrome-extension://abc"}))
NAMES = st.from_regex(r"[a-z][a-z0-9-]{0,10}(\.[a-z]{2,5}){1,2}", fullmatch=True)


def _refused(check, *values):
    try:
        check(*values)
    except InvalidInput:
        return True
    return False


@pytest.mark.parametrize(
    ("origin", "host", "refused"),
    [
        (None, "asr.example.com", False),
        ("http://127.0.0.1:8100", "127.0.0.1:8100", False),
        ("http://127.0.0.1:8100", "127.0.0.1:8101", True),
        ("https://asr.example.com", "asr.example.com", False),
        ("https://asr.example.com", "asr.example.com:443", False),
        ("https://ASR.example.com", "asr.EXAMPLE.com", False),
        ("https://asr.example.com", "asr.example.com:80", True),
        ("http://evil.example", "asr.example.com", True),
        ("http://asr.example.com.evil.example", "asr.example.com", True),
        ("null", "null", True),
        ("", "", True),
        ("http://", "", True),
        ("file://", "", True),
        ("ftp://asr.example.com", "asr.example.com", True),
        ("https://app.example.com", "asr.example.com", False),
        ("https://APP.example.com", "asr.example.com", False),
        ("http://app.example.com", "asr.example.com", True),
        ("http://localhost:3000", "localhost:8100", False),
        ("chrome-extension://abc", "localhost:8100", False),
        ("chrome-extension://abd", "localhost:8100", True),
        ("http://evil.example", None, True),
    ],
)
def test_a_page_calls_its_own_server_or_is_named(origin, host, refused):
    """Host and port are the server's, whatever the scheme's default port adds, or the list has the origin."""
    assert _refused(LISTED.check_origin, origin, host) is refused


@given(st.text(), st.text())
def test_no_two_texts_break_the_rules(origin, host):
    """Whatever the headers hold: in, or out by our error."""
    _refused(LISTED.check_origin, origin, host)
    _refused(Origins(frozenset(), keyless=True).check_host, host)


@given(NAMES)
def test_everyone_is_in_by_a_star_only(name):
    """A star is written; it is not what an empty list means."""
    assert not _refused(Origins(frozenset("*")).check_origin, f"https://{name}", "here")
    assert _refused(Origins(frozenset()).check_origin, f"https://{name}", "here")


@pytest.mark.parametrize(
    "host", ["127.0.0.1:8100", "[::1]:8100", "10.1.2.3", "localhost", "LOCALHOST:1", "a.localhost."]
)
def test_addresses_and_localhost_are_right_everywhere(host):
    """No name of somebody else's can be one of them."""
    assert not _refused(Origins(frozenset(), keyless=True, loopback=True).check_host, host)


@given(NAMES, st.booleans())
def test_a_name_with_a_dot_is_refused_without_keys_alone(name, loopback):
    """A foreign page has no key; without keys it may have pointed its name here. The list can allow it."""
    assert _refused(Origins(frozenset(), keyless=True, loopback=loopback).check_host, f"{name}:8100")
    assert not _refused(Origins(frozenset(), keyless=False, loopback=loopback).check_host, f"{name}:8100")
    listed = Origins(frozenset({f"http://{name}:8100"}), keyless=True, loopback=loopback)
    assert not _refused(listed.check_host, f"{name}:8100")


def test_a_bare_name_is_right_where_other_machines_can_connect():
    """Containers call each other by such names; on loopback there is no reason to."""
    for name in ("asr", "asr-cpu", "asr_1", "9"):
        assert not _refused(Origins(frozenset(), keyless=True).check_host, f"{name}:8000")
        assert _refused(Origins(frozenset(), keyless=True, loopback=True).check_host, f"{name}:8000")


@pytest.mark.parametrize(
    "name",
    [
        *("nas.local", "asr.home.arpa", "a.b.internal", "asr.lan", "pi.home", "a.localdomain", "nas.fritz.box"),
        "host.docker.internal",
    ],
)
def test_names_of_private_networks_are_right_where_other_machines_can_connect(name):
    """Nobody can register them. On loopback only Docker's name for its host is."""
    assert not _refused(Origins(frozenset(), keyless=True).check_host, f"{name}:8100")
    refused = _refused(Origins(frozenset(), keyless=True, loopback=True).check_host, f"{name}:8100")
    assert refused == (name != "host.docker.internal")
    assert _refused(Origins(frozenset(), keyless=True).check_host, f"{name}.example")


def test_a_refused_name_is_told_what_to_set():
    """The line as it goes into the settings, which then lets it in; an odd header is not repeated."""
    for host, line in (("asr.example.com:8100", "ALLOWED_ORIGINS=http://asr.example.com:8100"), ("a b.c", None)):
        with raises("host_not_allowed") as refusal:
            Origins(frozenset(), keyless=True).check_host(host)
        assert refusal.value.message.endswith(line or "can register only.")
    Origins(frozenset({"http://asr.example.com:8100"}), keyless=True).check_host("asr.example.com:8100")


@pytest.mark.parametrize(
    "host", ["", ":", "[", "a b", "evil.example/localhost", "evil.example#localhost", "user@localhost.x"]
)
def test_what_is_no_host_is_no_name_of_ours(host):
    """Odd headers are refused, and raise nothing else."""
    assert _refused(Origins(frozenset(), keyless=True).check_host, host)
