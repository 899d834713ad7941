"""Small files that hold, or claim, far more than they should."""

from __future__ import annotations

import io

import av
import numpy as np

from E2Etest import recordings

OPUS_PACKET = b"\xfb\x06"  # six frames of 20 ms with nothing in them: silence (RFC 6716, 3.2.5)
OPUS_PACKET_TICKS = 5_760  # at 48 kHz


def flac(seconds: int, rate: int = 8_000) -> bytes:
    """So much silence, in the largest blocks that there are."""
    sink, size = io.BytesIO(), 65_535
    with av.open(sink, "w", format="flac") as out:
        stream = out.add_stream("flac", rate=rate, layout="mono", options={"frame_size": str(size)})
        silence = np.zeros((1, size), np.int16)
        for at in range(0, seconds * rate, size):
            frame = av.AudioFrame.from_ndarray(silence, format="s16", layout="mono")
            frame.sample_rate, frame.pts = rate, at
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    return sink.getvalue()


def claiming(flac_file: bytes, samples: int) -> bytes:
    """The same with another length in its head; 0 says that it is unknown."""
    at = flac_file.index(b"fLaC") + 8 + 10  # into STREAMINFO: 28 bits of other things, then 36 of samples
    kept = int.from_bytes(flac_file[at : at + 8], "big") >> 36 << 36
    return flac_file[:at] + (kept | samples).to_bytes(8, "big") + flac_file[at + 8 :]


def opus(seconds: int, claimed_s: int | None = None) -> bytes:
    """So much silence in Ogg, at 27 bytes a second; the last page may claim another length."""
    head = b"OpusHead\1\1" + bytes(2) + (48_000).to_bytes(4, "little") + bytes(3)
    pages = [_page([head], 0, 0, first=True), _page([b"OpusTags" + bytes(8)], 0, 1)]
    left, at = seconds * 48_000 // OPUS_PACKET_TICKS, 0
    while left:
        count = min(255, left)
        left, at = left - count, at + count * OPUS_PACKET_TICKS
        told = at if left or claimed_s is None else claimed_s * 48_000
        pages.append(_page([OPUS_PACKET] * count, told, len(pages), last=not left))
    return b"".join(pages)


def mp4(table: bytes) -> bytes:
    """A second of sound whose sample table of this name says that it has 2^28 entries."""
    file = bytearray(recordings.encoded("mp4", "aac", recordings.samples()[:16_000]))
    at = file.index(table) + (12 if table == b"stsz" else 8)
    file[at : at + 4] = (2**28).to_bytes(4, "big")
    return bytes(file)


def tagged(tags: int) -> bytes:
    """So many tags that say they have 256 MiB each, one behind the other, and nothing in them."""
    return (b"ID3\3\0\0" + b"\x7f" * 4) * tags


def wav(channels: int, rate: int, bits: int) -> bytes:
    """A head of 4 GiB of such sound, and a kilobyte."""
    file = bytearray(recordings.riff(bytes(1_024), tag=1, rate=rate, channels=channels, bits=bits))
    file[4:8] = file[40:44] = b"\xff" * 4
    return bytes(file)


def matroska() -> bytes:
    """A cluster that says it is as large as a number can be."""
    file = recordings.encoded("webm", "libopus", recordings.samples()[:16_000])
    at = file.index(b"\x1f\x43\xb6\x75")  # the id of a cluster
    return file[:at] + b"\x1f\x43\xb6\x75\x01" + b"\xff" * 6 + b"\xfe" + bytes(64)


def _page(packets: list[bytes], granule: int, number: int, *, first: bool = False, last: bool = False) -> bytes:
    flags = 2 * first + 4 * last
    head = b"OggS\0" + bytes([flags]) + granule.to_bytes(8, "little") + b"\1\0\0\0" + number.to_bytes(4, "little")
    rest = bytes([len(packets)]) + bytes(len(packet) for packet in packets) + b"".join(packets)
    return head + _crc(head + bytes(4) + rest).to_bytes(4, "little") + rest


def _crc(data: bytes) -> int:
    """Ogg's checksum (RFC 3533)."""
    found = 0
    for byte in data:
        found = (found << 8 & 0xFFFF_FFFF) ^ _CRC[found >> 24 ^ byte]
    return found


def _crc_of(byte: int) -> int:
    found = byte << 24
    for _ in range(8):
        found = (found << 1 & 0xFFFF_FFFF) ^ (0x04C1_1DB7 if found & 0x8000_0000 else 0)
    return found


_CRC = [_crc_of(byte) for byte in range(256)]
