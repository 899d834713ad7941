"""Addresses and certificates with which a server can listen, and others."""

import socket

from asr_server.cli.listening import address_error


def test_a_port_is_free_or_the_system_says_why_not():
    """The port is in use while somebody listens, free after that; a name or address of no machine is an error."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        assert "in use" in address_error("127.0.0.1", port)
    assert address_error("127.0.0.1", port) == ""
    assert address_error("127.0.0.1", 0) == ""
    assert address_error("no-such-host.invalid", 0)
    assert address_error("192.0.2.1", 0)  # reserved for documentation (RFC 5737)
