"""Ports that are free, taken, and not to be had."""

import socket

from asr_server.cli.port import refusal


def test_a_port_is_free_or_the_system_says_why_not():
    """Taken while somebody listens, free again after that, and neither is a name that is nobody's."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert "in use" in refusal("127.0.0.1", port)
    assert refusal("127.0.0.1", port) == ""
    assert refusal("127.0.0.1", 0) == ""
    assert refusal("no-such-host.invalid", 0)
    assert refusal("192.0.2.1", 0)  # an address of nobody's (RFC 5737)
