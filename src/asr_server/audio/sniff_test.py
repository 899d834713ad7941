"""Recognising a container by its content."""

import itertools
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asr_server.audio.conftest import encode, read_all, tone
from asr_server.audio.sniff import id3_bytes, locate


def _found(content):
    return locate(lambda count, at: content[at : at + count])


MP3 = read_all(encode("mp3", "libmp3lame", tone(1.0, 44_100), 44_100))
MP3 = MP3[id3_bytes(MP3) :]  # frames from the first byte on


def _tag(claimed_bytes, body=b""):
    digits = bytes(claimed_bytes >> shift & 127 for shift in (21, 14, 7, 0))
    return b"ID3\x03\0\0" + digits + body


FOUND = [
    # Zeros, text, and tags whose size is too small or too large precede the frames of an MP3.
    *(
        (junk + MP3, ("mp3", len(junk)))
        for junk in (
            b"",
            bytes(5_000_000),
            b"\xff" * 100_000,
            b"HTTP/1.0 200 OK\r\nContent-Type: audio/mpeg\r\n\r\n",
            _tag(2_000, bytes(2_000)) + _tag(3_000, bytes(3_000)),
            _tag(2_000_000, bytes(10)),
            b"ID3\x03\0\0" + struct.pack(">I", 200_000) + bytes(200_000),
            _tag(100_000, np.random.default_rng(2).bytes(500_000)),
        )
    ),
    # The length of a tag is four times seven bits. It may have a footer.
    (_tag(2_000, bytes(2_000)) + b"ID3\x04\x00\x10\x00\x00\x02\x01" + bytes(267) + b"fLaC", ("flac", 2_010 + 277)),
    # A film whose container is not known has a few frames of MP3 in a row.
    (b"".join(b"\x01packet of a film" + MP3[at : at + 835] for at in range(0, len(MP3), 835)), None),
    # Recorders cut the packets of transport streams, and write them with time stamps or checksums.
    *(
        (b"\x02" * junk_bytes + (bytes(packet_bytes - 188) + b"G" + b"\x01" * 187) * 20, ("mpegts", 0))
        for packet_bytes, junk_bytes in itertools.product((188, 192, 204), (0, 5_000))
    ),
    # Packs of a program stream, of either version, may begin after a cut, and hold many frames of MP2 or MP3.
    *(
        (((b"\0\0\x01\xba" + head + b"\0\0\x01\xc0" + struct.pack(">H", len(MP3)) + MP3) * 3)[cut:], ("mpeg", 0))
        for head, cut in itertools.product((b"\x44" * 10, b"\x21" * 8), (0, 2, 1_000))
    ),
    # What is not read has a name, even if it holds frames of MP3.
    (b".RMF\0\0\0\x12" + MP3, ("RealMedia", 0)),
    (b"FWS\x08" + MP3, ("SWF", 0)),
]


@pytest.mark.parametrize(("content", "found"), FOUND, ids=itertools.count())
def test_a_container_is_found_by_its_content(content, found):
    assert _found(content) == found


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300))
def test_never_raises(head):
    """Any bytes get an answer, and text gets none."""
    found = _found(head)
    assert found is None or (found[0].isidentifier() and 0 <= found[1] <= len(head))
    assert _found(b"#EXTM3U\n" + head.replace(b"\xff", b"").replace(b"\xba", b"")) is None
    assert id3_bytes(head) >= 0
