"""Small files that hold, or claim, far more than they should."""

from __future__ import annotations

import io
import struct

import av
import numpy as np

from E2Etest.drive import recordings

OPUS_PACKET = b"\xfb\x06"  # six frames of 20 ms with nothing in them: silence (RFC 6716, 3.2.5)
OPUS_PACKET_TICKS = 5_760  # at 48 kHz


def flac(seconds: int, rate: int = 8_000) -> bytes:
    """Return a file of silence in the largest blocks that there are."""
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
    """Return the file with another length in its head; 0 says that it is unknown."""
    at = flac_file.index(b"fLaC") + 8 + 10  # into STREAMINFO: 28 bits of other things, then 36 of samples
    kept = int.from_bytes(flac_file[at : at + 8], "big") >> 36 << 36
    return flac_file[:at] + (kept | samples).to_bytes(8, "big") + flac_file[at + 8 :]


def opus(seconds: int, claimed_s: int | None = None) -> bytes:
    """Return silence in Ogg, at 27 bytes a second; the last page may claim another length."""
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


def wav(channels: int, rate: int, bits: int) -> bytes:
    """A head of 4 GiB of such sound, and a kilobyte."""
    file = bytearray(recordings.riff(bytes(1_024), tag=1, rate=rate, channels=channels, bits=bits))
    file[4:8] = file[40:44] = b"\xff" * 4
    return bytes(file)


def counted(samples: int) -> bytes:
    """A MOV of a few hundred bytes whose tables say that it has so many samples of one byte, each with a time."""
    scale = struct.pack(">9I", 1 << 16, 0, 0, 0, 1 << 16, 0, 0, 0, 1 << 30)
    movie = _atom(b"mvhd", struct.pack(">5IIH", 0, 0, 0, 8_000, samples, 1 << 16, 256), bytes(10), scale, bytes(28))
    times = _atom(b"stts", struct.pack(">6I", 0, 2, 1, 1, samples - 1, 1))
    chunks = _atom(b"stsc", struct.pack(">5I", 0, 1, 1, samples, 1)), _atom(b"stco", struct.pack(">3I", 0, 1, 0))
    sizes = _atom(b"stsz", struct.pack(">3I", 0, 1, samples))
    track = _track(scale, samples, _ULAW, times, *chunks, sizes)
    return _atom(b"ftyp", b"qt  ", bytes(4), b"qt  ") + _atom(b"moov", movie, track) + _atom(b"mdat", bytes(8_000))


def backwards(fragments: int) -> bytes:
    """A fragmented MP4, each fragment of which begins before the last: libavformat sorts them, one by one."""
    scale = struct.pack(">9I", 1 << 16, 0, 0, 0, 1 << 16, 0, 0, 0, 1 << 30)
    movie = _atom(b"mvhd", struct.pack(">5IIH", 0, 0, 0, 8_000, 0, 1 << 16, 256), bytes(10), scale, bytes(28))
    empty = [_atom(name, bytes(8)) for name in (b"stts", b"stsc", b"stco")]
    track = _track(scale, 0, _ULAW, *empty, _atom(b"stsz", bytes(12)))
    defaults = _atom(b"mvex", _atom(b"trex", struct.pack(">6I", 0, 1, 1, 100, 100, 0)))
    parts = [_atom(b"ftyp", b"iso5", bytes(4), b"iso5"), _atom(b"moov", movie, track, defaults)]
    for at in range(fragments, 0, -1):
        head = _atom(b"tfhd", struct.pack(">2I", 0x20000, 1)), _atom(b"tfdt", struct.pack(">2I", 0, 100 * at))
        run = _atom(b"trun", struct.pack(">3I", 1, 1, 8))
        parts.append(_atom(b"moof", _atom(b"mfhd", struct.pack(">2I", 0, at)), _atom(b"traf", *head, run)))
    return b"".join([*parts, _atom(b"mdat", bytes(8_000))])


def _track(scale: bytes, samples: int, *tables: bytes) -> bytes:
    """A track of sound (ISO 14496-12, section 8)."""
    place = bytes(8), struct.pack(">4H", 0, 0, 256, 0), scale, bytes(8)
    head = _atom(b"tkhd", struct.pack(">6I", 15, 0, 0, 1, 0, samples), *place)
    media = _atom(b"mdhd", struct.pack(">5I", 0, 0, 0, 8_000, samples), bytes(4))
    handler = _atom(b"hdlr", bytes(4), b"mhlrsoun", bytes(13))
    data = _atom(b"dinf", _atom(b"dref", struct.pack(">2I", 0, 1), _atom(b"url ", struct.pack(">I", 1))))
    information = _atom(b"minf", _atom(b"smhd", bytes(8)), data, _atom(b"stbl", *tables))
    return _atom(b"trak", head, _atom(b"mdia", media, handler, information))


def _atom(name: bytes, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return struct.pack(">I", 8 + len(body)) + name + body


_ULAW = _atom(
    b"stsd",
    struct.pack(">2I", 0, 1),
    _atom(b"ulaw", bytes(6), struct.pack(">H", 1), bytes(8), struct.pack(">4HI", 1, 16, 0, 0, 8_000 << 16)),
)


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
