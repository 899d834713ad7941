"""Messages between the server and a child process."""

import io

import pytest

from asr_server.processes import messages


def test_messages_over_the_limits_are_neither_sent_nor_read():
    """A message over the limits would cost all recordings their process."""
    with pytest.raises(ValueError, match="a message of"):
        messages.packed({"text": "x" * messages.MAX_JSON_BYTES})
    with pytest.raises(ValueError, match="a message of"):
        messages.sizes(messages.HEADER.pack(2, messages.MAX_DATA_BYTES + 1))
    with pytest.raises(ValueError, match="a message of"):  # a reader may allow less
        messages.read(io.BytesIO(messages.packed({}, bytes(100))).read, 101)
    longest = messages.MAX_JSON_BYTES, messages.MAX_DATA_BYTES
    assert messages.sizes(messages.HEADER.pack(*longest)) == longest


@pytest.mark.parametrize("text", [b"?", b"[1]", b"[" * 100_000])
def test_what_is_no_object_is_no_message(text):
    """A process may be taken over by what it reads."""
    with io.BytesIO(messages.HEADER.pack(len(text), 0) + text) as sent, pytest.raises(ValueError, match="object"):
        messages.read(sent.read)
