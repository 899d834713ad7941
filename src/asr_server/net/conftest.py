"""A connection without a network, for the tests of the protocols."""

from __future__ import annotations

import asyncio


class Transport(asyncio.Transport):
    """A connection without a network: it takes everything, and keeps it. `unread`: what its peer has not taken."""

    def __init__(self):
        super().__init__()
        self.closing, self.sent, self.unread = False, b"", 0
        self.is_reading = True

    def pause_reading(self):
        self.is_reading = False

    def resume_reading(self):
        self.is_reading = True

    def get_write_buffer_size(self):
        return self.unread

    def set_write_buffer_limits(self, high=None, low=None):
        if high is not None and self.unread > high:
            self.get_protocol().pause_writing()

    def set_protocol(self, protocol):
        self.protocol = protocol

    def get_protocol(self):
        return self.protocol

    def is_closing(self):
        return self.closing

    def close(self):
        self.closing = True

    abort = close

    def write(self, data):
        self.sent += data
