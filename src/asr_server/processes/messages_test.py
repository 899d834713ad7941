"""Messages between the server and a child process."""

import pytest

from asr_server.processes import messages


def test_messages_over_the_limits_are_neither_sent_nor_read():
    """A message over the limits would cost all recordings their process."""
    with pytest.raises(ValueError, match="a message of"):
        messages.packed({"text": "x" * messages.MAX_JSON_BYTES})
    with pytest.raises(ValueError, match="a message of"):
        messages.sizes(messages.HEADER.pack(2, messages.MAX_DATA_BYTES + 1))
