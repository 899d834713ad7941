"""Recognising a container by its first bytes."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from asr_server.audio import sniff
from asr_server.audio.conftest import encode, tone
from asr_server.audio.sniff import demuxer_of, id3_bytes


def test_recognises_what_encoders_write() -> None:
    """Streams as encoders write them are recognised, also when an ID3v2 tag precedes them."""
    formats = [("mp3", "libmp3lame", "mp3"), ("adts", "aac", "aac"), ("flac", "flac", "flac"), ("mp2", "mp2", "mp3")]
    for (container, codec, expected), rate_hz in itertools.product(formats, (16_000, 48_000)):
        with encode(container, codec, tone(0.5, rate_hz), rate_hz) as file:
            file.seek(0)
            content = file.read()
        assert demuxer_of(content[id3_bytes(content) :]) == expected, (container, rate_hz)


def test_finds_frames_after_a_ragged_start() -> None:
    """An MP3 stream that was cut mid-frame is still MP3."""
    with encode("mp3", "libmp3lame", tone(1.0, 44_100), 44_100) as file:
        file.seek(2_000)
        assert demuxer_of(file.read()) == "mp3"


def test_id3_length() -> None:
    """The length of an ID3v2 tag is read as four times seven bits, a footer added."""
    assert id3_bytes(b"ID3\x04\x00\x00\x00\x00\x02\x01") == 10 + 257
    assert id3_bytes(b"ID3\x04\x00\x10\x00\x00\x02\x01") == 20 + 257
    assert id3_bytes(b"ID3\x04\x00\x00\x00\x00\x02\x81") == 0
    assert id3_bytes(b"RIFF") == 0


def test_noise_is_nothing() -> None:
    """Two megabytes of random bytes have no three agreeing frames anywhere."""
    rng = np.random.default_rng(3)
    assert {demuxer_of(rng.bytes(65_536)) for _ in range(32)} == {None}


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300))
def test_never_raises(head: bytes) -> None:
    """Any bytes get an answer, and text gets none."""
    assert demuxer_of(head) in {None, "wav", "aiff", "mov", "mp3", "aac", *(name for _, name in sniff._MAGIC)}
    assert demuxer_of(b"#EXTM3U\n" + head.replace(b"\xff", b"")) is None
    assert id3_bytes(head) >= 0
