"""Recognising a container by its content."""

from __future__ import annotations

import itertools
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asr_server.audio.conftest import encode, read_all, tone
from asr_server.audio.sniff import DEMUXERS, id3_bytes, locate


def _found(content):
    return locate(lambda count, at: content[at : at + count])


def _mp3():
    """Frames from the first byte on."""
    with encode("mp3", "libmp3lame", tone(1.0, 44_100), 44_100) as file:
        content = read_all(file)
    return content[id3_bytes(content) :]


MP3 = _mp3()


def test_recognises_what_encoders_write():
    """Streams as encoders write them are recognised, also when an ID3v2 tag precedes them."""
    formats = [("mp3", "libmp3lame", "mp3"), ("adts", "aac", "aac"), ("flac", "flac", "flac"), ("mp2", "mp2", "mp3")]
    for (container, codec, expected), rate_hz in itertools.product(formats, (16_000, 48_000)):
        with encode(container, codec, tone(0.5, rate_hz), rate_hz) as file:
            content = read_all(file)
        assert _found(content) == (expected, id3_bytes(content)), (container, rate_hz)


def _tag(claimed_bytes, body=b""):
    digits = bytes(claimed_bytes >> shift & 127 for shift in (21, 14, 7, 0))
    return b"ID3\x03\0\0" + digits + body


@pytest.mark.parametrize(
    "junk",
    [
        b"",
        bytes(1),
        bytes(100_000),
        bytes(5_000_000),
        b"\xff" * 100_000,
        bytes(range(255)) * 700,
        b"HTTP/1.0 200 OK\r\nContent-Type: audio/mpeg\r\n\r\n",
        _tag(2_000, bytes(2_000)) + _tag(3_000, bytes(3_000)),
        _tag(10, bytes(80_010)),
        _tag(2_000_000, bytes(10)),
        _tag(20_000, bytes(10)),
        b"ID3\x03\0\0" + struct.pack(">I", 200_000) + bytes(200_000),
        b"ID3\x03\0\0" + struct.pack(">I", 40_000) + bytes(40_000),
        _tag(100_000, np.random.default_rng(2).bytes(500_000)),
    ],
    ids=itertools.count(),
)
def test_finds_the_first_frame_behind_anything(junk):
    """Zeros, text, and tags whose size is too small or too large precede the frames of an MP3."""
    assert _found(junk + MP3) == ("mp3", len(junk))


def test_finds_frames_after_a_ragged_start():
    """An MP3 stream that was cut mid-frame is still MP3."""
    found = _found(MP3[2_000:])
    assert found is not None
    assert found[0] == "mp3"
    assert 0 < found[1] < 1_000


def test_packets_of_another_container_are_no_mp3():
    """A film whose container is not known has a few frames in a row."""
    frames = [MP3[at : at + 835] for at in range(0, len(MP3), 835)]
    assert _found(b"".join(b"\x01packet of a film" + frame for frame in frames)) is None


@pytest.mark.parametrize("packet_bytes", [188, 192, 204])
@pytest.mark.parametrize("junk_bytes", [0, 1, 150, 5_000])
def test_a_transport_stream_may_begin_anywhere(packet_bytes, junk_bytes):
    """Recorders cut packets, and write them with time stamps or checksums."""
    packet = bytes(packet_bytes - 188) + b"G" + b"\x01" * 187
    assert _found(b"\x02" * junk_bytes + packet * 20) == ("mpegts", 0)


def test_a_program_stream_is_recognised_before_the_frames_in_it():
    """Its packs of either version may begin after a cut, and hold many frames of MP2 or MP3."""
    for pack in (b"\0\0\x01\xba" + b"\x44" * 10, b"\0\0\x01\xba" + b"\x21" * 8):
        packet = pack + b"\0\0\x01\xc0" + struct.pack(">H", len(MP3)) + MP3
        for cut in (0, 2, 1_000):
            assert _found((packet * 3)[cut:]) == ("mpeg", 0), (pack, cut)


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (b".RMF\0\0\0\x12", "RealMedia"),
        (b"TTA1", "TTA"),
        (b"MAC \x96\x0f", "APE"),
        (b"FWS\x08", "SWF"),
        (b"MPCK", "Musepack"),
    ],
)
def test_names_what_is_not_read(content, name):
    """Also if it holds frames of MP3."""
    assert _found(content + MP3) == (name, 0)
    assert name not in DEMUXERS


def test_id3_length():
    """The length of an ID3v2 tag is read as four times seven bits, a footer added."""
    assert id3_bytes(b"ID3\x04\x00\x00\x00\x00\x02\x01") == 10 + 257
    assert id3_bytes(b"ID3\x04\x00\x10\x00\x00\x02\x01") == 20 + 257
    assert id3_bytes(b"ID3\x04\x00\x00\x00\x00\x02\x81") == 0
    assert id3_bytes(b"RIFF") == 0


def test_noise_is_nothing():
    """Two megabytes of random bytes have no ten agreeing frames anywhere."""
    assert _found(np.random.default_rng(3).bytes(2_000_000)) is None


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300))
def test_never_raises(head):
    """Any bytes get an answer, and text gets none."""
    found = _found(head)
    assert found is None or (found[0].isidentifier() and 0 <= found[1] <= len(head))
    assert _found(b"#EXTM3U\n" + head.replace(b"\xff", b"").replace(b"\xba", b"")) is None
    assert id3_bytes(head) >= 0
