"""Which pages and which host names may call."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr_server.core.conftest import raises
from asr_server.core.errors import InvalidInput
from asr_server.net.access import Origins

LISTED = Origins(frozenset({"https://app.example.com"}))
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
        ("http://asr.example.com.evil.example", "asr.example.com", True),
        ("null", "null", True),
        ("", "", True),
        ("http://", "", True),
        ("ftp://asr.example.com", "asr.example.com", True),
        ("https://app.example.com", "asr.example.com", False),
        ("https://APP.example.com", "asr.example.com", False),
        ("http://app.example.com", "asr.example.com", True),
        ("http://evil.example", None, True),
    ],
)
def test_a_page_calls_its_own_server_or_is_named(origin, host, refused):
    """Host and port are the server's, whatever the scheme's default port adds, or the list has the origin."""
    assert _refused(LISTED.check_origin, origin, host) is refused


def test_everyone_is_in_by_a_star_only():
    """An empty list does not mean a star."""
    for listed, refused in (("*", False), ("", True)):
        assert _refused(Origins(frozenset(listed)).check_origin, "https://a.example", "here") is refused
        assert _refused(Origins(frozenset(listed), keyless=True).check_host, "a.example") is refused


@given(NAMES, st.booleans())
def test_a_name_with_a_dot_is_refused_without_keys_alone(name, loopback):
    """A foreign page has no key; without keys it may have pointed its name here. The list can allow it."""
    assert _refused(Origins(frozenset(), keyless=True, loopback=loopback).check_host, f"{name}:8100")
    assert not _refused(Origins(frozenset(), keyless=False, loopback=loopback).check_host, f"{name}:8100")
    listed = Origins(frozenset({f"http://{name}:8100"}), keyless=True, loopback=loopback)
    assert not _refused(listed.check_host, f"{name}:8100")


def test_a_refused_name_is_told_what_to_set():
    """The line as it goes into the settings; an odd header is not repeated."""
    for host, said in (("asr.example.com:8100", "ALLOWED_ORIGINS=http://asr.example.com:8100$"), ("a b.c", "only.$")):
        with raises("host_not_allowed", match=said):
            Origins(frozenset(), keyless=True).check_host(host)


PRIVATE = ("nas.local", "asr.home.arpa", "a.b.internal", "asr.lan", "pi.home", "a.localdomain", "nas.fritz.box")
HOSTS = [
    # Addresses, localhost and Docker's name for its host are right everywhere: nobody else can have them.
    *((host, False, False) for host in ("127.0.0.1:8100", "[::1]:8100", "10.1.2.3", "localhost", "LOCALHOST:1")),
    *((host, False, False) for host in ("a.localhost.", "host.docker.internal:8100")),
    # Bare names of containers, and those that nobody can register, where other machines can connect.
    *((f"{name}:8000", False, True) for name in ("asr", "asr-cpu", "asr_1", "9", *PRIVATE)),
    *((f"{name}.example", True, True) for name in PRIVATE),
    # Odd headers are refused, and raise nothing else.
    *((host, True, True) for host in ("", ":", "[", "a b", "evil.example/localhost", "evil.example#localhost")),
    ("user@localhost.x", True, True),
]


@pytest.mark.parametrize(("host", "refused", "refused_on_loopback"), HOSTS)
def test_without_keys_a_host_is_an_address_or_a_name_that_nobody_else_can_have(host, refused, refused_on_loopback):
    """A page of somebody else could have pointed any other name here."""
    assert _refused(Origins(frozenset(), keyless=True).check_host, host) is refused
    assert _refused(Origins(frozenset(), keyless=True, loopback=True).check_host, host) is refused_on_loopback
