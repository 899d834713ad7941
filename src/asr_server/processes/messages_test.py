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


@pytest.mark.parametrize("text", [b"?", b"[1]", b"[" * 100_000])
def test_what_is_no_object_is_no_message(text):
    """A process may be taken over by what it reads."""
    with io.BytesIO(messages.HEADER.pack(len(text), 0) + text) as sent, pytest.raises(ValueError, match="object"):
        messages.read(sent.read)


def test_a_reader_may_allow_less():
    sent = messages.packed({}, bytes(100))
    assert messages.read(io.BytesIO(sent).read, 102) == ({}, bytes(100))
    with pytest.raises(ValueError, match="a message of"):
        messages.read(io.BytesIO(sent).read, 101)
