"""Chooses the demuxer from the first bytes of a file, never from its name, and none that can open other files.

libavformat's own probing is not used: it tries some 350 demuxers, among them playlists, and it takes random bytes for
MP3 after a single plausible frame header. Here a container is recognised by its magic number, and raw MPEG audio or
ADTS by three consecutive frames whose lengths agree.
"""

from __future__ import annotations

from collections.abc import Callable

HEAD_BYTES = 65_536  # how much of the file (after an ID3v2 tag) is looked at
_MIN_FRAMES = 3  # chance of three agreeing headers in random bytes is below 1e-9 a position

_MPEG1_KBPS = {
    1: (0, 32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384, 416, 448),
    2: (0, 32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384),
    3: (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
}
_MPEG2_LAYER1_KBPS = (0, 32, 48, 56, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256)
_MPEG2_KBPS = (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160)
_MPEG_RATES_HZ = {3: (44_100, 48_000, 32_000), 2: (22_050, 24_000, 16_000), 0: (11_025, 12_000, 8_000)}
_ADTS_RATES = 13  # sampling_frequency_index 13 to 15 are reserved (ISO 13818-7, table 35)
_FrameBytes = Callable[[bytes], int]
_MOV_ATOMS = frozenset({b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip", b"pnot", b"styp"})


def id3_bytes(head: bytes) -> int:
    """Length of the ID3v2 tag at the start of `head`, 0 if there is none (id3.org, ID3v2.4 section 3.1)."""
    if len(head) < 10 or head[:3] != b"ID3" or max(head[6:10]) > 0x7F:
        return 0
    size = head[6] << 21 | head[7] << 14 | head[8] << 7 | head[9]
    return 10 + size + (10 if head[5] & 0x10 else 0)


def demuxer_of(head: bytes) -> str | None:
    """Return the libavformat demuxer for a file that starts with `head` (past any ID3v2 tag), or None if none fits."""
    return _by_magic(head) or _by_frames(head)


def _by_magic(head: bytes) -> str | None:
    if head[:4] in {b"RIFF", b"RIFX", b"RF64", b"BW64"} and head[8:12] == b"WAVE":
        return "wav"
    if head[:4] == b"FORM" and head[8:12] in {b"AIFF", b"AIFC"}:
        return "aiff"
    if head[4:8] in _MOV_ATOMS:
        return "mov"
    for magic, name in _MAGIC:
        if head.startswith(magic):
            return name
    return None


_MAGIC = (
    (b"fLaC", "flac"),
    (b"OggS", "ogg"),
    (b"\x1a\x45\xdf\xa3", "matroska"),
    (b"riff\x2e\x91\xcf\x11\xa5\xd6\x28\xdb", "w64"),
    (b"caff\x00\x01", "caf"),
    (b".snd", "au"),
    (b"#!AMR\n", "amr"),
    (b"#!AMR-WB\n", "amr"),
)


def _by_frames(head: bytes) -> str | None:
    """ "mp3" or "aac" if frames of one of them follow each other somewhere in `head`: a stream may start mid-frame."""
    at = head.find(b"\xff")
    while at >= 0:
        for name, length in (("mp3", _mpeg_frame_bytes), ("aac", _adts_frame_bytes)):
            if _run_of_frames(head, at, length):
                return name
        at = head.find(b"\xff", at + 1)
    return None


def _run_of_frames(head: bytes, at: int, frame_bytes: _FrameBytes) -> bool:
    """True if `_MIN_FRAMES` frames (or two, if `head` ends there) follow each other from `at` on."""
    for seen in range(_MIN_FRAMES):
        size = frame_bytes(head[at : at + 7])
        if not size:
            return seen >= 2 and at >= len(head)
        at += size
    return True


def _mpeg_frame_bytes(header: bytes) -> int:
    """Bytes of the MPEG-1/2/2.5 audio frame with this header (ISO 11172-3, 2.4.3.1), 0 if it is none."""
    if len(header) < 4 or header[0] != 0xFF or header[1] & 0xE0 != 0xE0:
        return 0
    version, layer = header[1] >> 3 & 3, 4 - (header[1] >> 1 & 3)
    kbps_index, rate_index, padding = header[2] >> 4, header[2] >> 2 & 3, header[2] >> 1 & 1
    if version == 1 or layer == 4 or kbps_index in {0, 15} or rate_index == 3:
        return 0
    mpeg1 = version == 3
    kbps = (_MPEG1_KBPS[layer] if mpeg1 else _MPEG2_LAYER1_KBPS if layer == 1 else _MPEG2_KBPS)[kbps_index]
    rate_hz = _MPEG_RATES_HZ[version][rate_index]
    if layer == 1:
        return (12_000 * kbps // rate_hz + padding) * 4
    samples = 1152 if mpeg1 or layer == 2 else 576
    return samples // 8 * 1000 * kbps // rate_hz + padding


def _adts_frame_bytes(header: bytes) -> int:
    """Bytes of the ADTS frame with this header (ISO 13818-7, 6.2), 0 if it is none."""
    if len(header) < 7 or header[0] != 0xFF or header[1] & 0xF6 != 0xF0 or header[2] >> 2 & 15 >= _ADTS_RATES:
        return 0
    size = (header[3] & 3) << 11 | header[4] << 3 | header[5] >> 5
    return size if size > 7 else 0
