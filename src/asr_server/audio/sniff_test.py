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


with encode("mp3", "libmp3lame", tone(1.0, 44_100), 44_100) as _file:
    MP3 = read_all(_file)
MP3 = MP3[id3_bytes(MP3) :]  # frames from the first byte on


def _tag(claimed_bytes, body=b""):
    digits = bytes(claimed_bytes >> shift & 127 for shift in (21, 14, 7, 0))
    return b"ID3\x03\0\0" + digits + body


@pytest.mark.parametrize(
    "junk",
    [
        b"",
        bytes(5_000_000),
        b"\xff" * 100_000,
        b"HTTP/1.0 200 OK\r\nContent-Type: audio/mpeg\r\n\r\n",
        _tag(2_000, bytes(2_000)) + _tag(3_000, bytes(3_000)),
        _tag(2_000_000, bytes(10)),
        b"ID3\x03\0\0" + struct.pack(">I", 200_000) + bytes(200_000),
        _tag(100_000, np.random.default_rng(2).bytes(500_000)),
    ],
    ids=itertools.count(),
)
def test_finds_the_first_frame_behind_anything(junk):
    """Zeros, text, and tags whose size is too small or too large precede the frames of an MP3."""
    assert _found(junk + MP3) == ("mp3", len(junk))


def test_a_container_may_follow_tags():
    """The length of an ID3v2 tag is four times seven bits. It may have a footer."""
    footed = b"ID3\x04\x00\x10\x00\x00\x02\x01" + bytes(267)
    assert _found(_tag(2_000, bytes(2_000)) + footed + b"fLaC") == ("flac", 2_010 + 277)


def test_packets_of_another_container_are_no_mp3():
    """A film whose container is not known has a few frames in a row."""
    frames = [MP3[at : at + 835] for at in range(0, len(MP3), 835)]
    assert _found(b"".join(b"\x01packet of a film" + frame for frame in frames)) is None


@pytest.mark.parametrize("packet_bytes", [188, 192, 204])
@pytest.mark.parametrize("junk_bytes", [0, 5_000])
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


@pytest.mark.parametrize(("content", "name"), [(b".RMF\0\0\0\x12", "RealMedia"), (b"FWS\x08", "SWF")])
def test_names_what_is_not_read(content, name):
    """Also if it holds frames of MP3."""
    assert _found(content + MP3) == (name, 0)
    assert name not in DEMUXERS


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300))
def test_never_raises(head):
    """Any bytes get an answer, and text gets none."""
    found = _found(head)
    assert found is None or (found[0].isidentifier() and 0 <= found[1] <= len(head))
    assert _found(b"#EXTM3U\n" + head.replace(b"\xff", b"").replace(b"\xba", b"")) is None
    assert id3_bytes(head) >= 0
