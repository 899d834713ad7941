"""A server on the fake engine in this process, and a client of it."""

from asr_server.net.conftest import client, serve

__all__ = ["client", "serve"]
