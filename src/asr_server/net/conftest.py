"""A connection without a network, for the tests of the protocols."""

import asyncio


class Transport(asyncio.Transport):
    """A connection without a network: it takes everything, and keeps it. `unread`: what its peer has not taken."""

    closing, sent, unread, is_reading = False, b"", 0, True

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
