"""Finds the container of a file by its content, never by its name, and chooses a demuxer that cannot open other files.

libavformat's own probing is not used: it tries some 350 demuxers, among them playlists, and it takes random bytes for
MP3 after a single plausible frame header. Here a container is recognised by its magic number, an MPEG stream by its
repeating packet headers, and raw MPEG audio or ADTS by consecutive frames whose lengths agree.
"""

from __future__ import annotations

import re
from collections.abc import Callable

HEAD_BYTES = 65_536  # read at once
_MAX_ID3_TAGS = 8
_SEARCH_BYTES = 32 * 1024 * 1024  # how much junk, padding or pictures may precede the first frame
# In random bytes, three agreeing headers have a chance below 1e-9 a position. Inside other content, such as the packets
# of an unknown container, three frames may follow each other, but not as many as a search requires.
_MIN_FRAMES, _MIN_FRAMES_INSIDE = 3, 10
_FRAME = re.compile(rb"\xff[\xe2-\xff][\x00-\xef]")  # the first three bytes that any frame below can have

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

# The demuxers that may be used, by libavformat's names, with the common names of their formats.
DEMUXERS = {
    "wav": "WAV",
    "w64": "W64",
    "aiff": "AIFF",
    "au": "AU",
    "caf": "CAF",
    "flac": "FLAC",
    "wv": "WavPack",
    "amr": "AMR",
    "mp3": "MP3",
    "aac": "AAC",
    "ac3": "AC-3",
    "dts": "DTS",
    "ogg": "Ogg",
    "mov": "MP4 or MOV",
    "matroska": "Matroska or WebM",
    "avi": "AVI",
    "asf": "ASF (WMA, WMV)",
    "flv": "FLV",
    "mpeg": "MPEG program stream",
    "mpegts": "MPEG transport stream",
}
# The name of the group is the demuxer, or a container that is not supported.
_MAGIC = re.compile(
    rb"""(?xs)
    (?P<wav>(?:RIFF|RIFX|RF64|BW64)....WAVE) | (?P<avi>RIFF....AVI[\ X\x19]) | (?P<aiff>FORM....AIF[FC])
    | (?P<mov>....(?:ftyp|moov|mdat|wide|free|skip|pnot|styp)) | (?P<matroska>\x1a\x45\xdf\xa3) | (?P<flac>fLaC)
    | (?P<ogg>OggS) | (?P<w64>riff\x2e\x91\xcf\x11\xa5\xd6\x28\xdb) | (?P<caf>caff\0\x01) | (?P<au>\.snd)
    | (?P<amr>\#!AMR(?:-WB)?\n) | (?P<wv>wvpk) | (?P<flv>FLV\x01) | (?P<mpeg>\0\0\x01[\xba-\xff])
    | (?P<asf>\x30\x26\xb2\x75\x8e\x66\xcf\x11\xa6\xd9\x00\xaa\x00\x62\xce\x6c)
    | (?P<dts>\x7f\xfe\x80\x01) | (?P<ac3>\x0b\x77.{10,4094}?\x0b\x77)
    | (?P<RealMedia>\.(?:RMF|ra\xfd)) | (?P<TTA>TTA[12]) | (?P<APE>MAC\ ) | (?P<Musepack>MPCK|MP\+) | (?P<TAK>tBaK)
    | (?P<SWF>[FCZ]WS[\x03-\x32]) | (?P<NUT>nut/multimedia\ container\0) | (?P<WTV>\xb7\xd8\x00\x20\x37\x49\xda\x11)
    | (?P<MXF>\x06\x0e\x2b\x34\x02\x05\x01\x01\x0d\x01\x02) | (?P<DSF>DSD\ ) | (?P<DSDIFF>FRM8....)
    | (?P<MIDI>MThd\0\0\0\x06) | (?P<VOC>Creative\ Voice\ File)
    """
)
_STREAMS = re.compile(  # a recording of a broadcast may begin anywhere
    rb"(?s)(?P<mpegts>G(?:(?:.{187}G){5}|(?:.{191}G){5}|(?:.{203}G){5}))"
    rb"|(?P<mpeg>\0\0\x01\xba(?:.{8}|.{10,17})\0\0\x01[\xb9-\xff])"
)


def locate(read: Callable[[int, int], bytes]) -> tuple[str, int] | None:
    """Return the container of a file and the byte where it begins, or None if it is not known.

    The container is a key of `DEMUXERS`, or the name of an unsupported one. `read(count, at)` returns `count` bytes at
    position `at`. A container may follow ID3v2 tags. Frames may follow anything: the size in a tag may be wrong.
    """
    begin = 0
    for _ in range(_MAX_ID3_TAGS):
        head = read(HEAD_BYTES, begin)
        tag_bytes = id3_bytes(head)
        begin += tag_bytes
        if not tag_bytes:
            break
    if found := _MAGIC.match(head) or _STREAMS.search(head):
        return str(found.lastgroup), begin
    if name := _frames(head, 0, _MIN_FRAMES):
        return name, begin
    for begin in range(0, _SEARCH_BYTES, HEAD_BYTES // 2):
        head = read(HEAD_BYTES, begin)
        for found in _FRAME.finditer(head, 0, HEAD_BYTES // 2 + 2):
            if name := _frames(head, found.start(), _MIN_FRAMES_INSIDE):
                return name, begin + found.start()
        if len(head) <= HEAD_BYTES // 2:
            break
    return None


def id3_bytes(head: bytes) -> int:
    """Length of the ID3v2 tag at the start of `head`, 0 if there is none (id3.org, ID3v2.4 section 3.1)."""
    if len(head) < 10 or head[:3] != b"ID3" or max(head[6:10]) > 0x7F:
        return 0
    size = head[6] << 21 | head[7] << 14 | head[8] << 7 | head[9]
    return 10 + size + (10 if head[5] & 0x10 else 0)


def _frames(head: bytes, at: int, count: int) -> str | None:
    """Return "mp3" or "aac" if `count` of its frames follow each other from `at` on, else None."""
    for name, length in (("mp3", _mpeg_frame_bytes), ("aac", _adts_frame_bytes)):
        if _run_of_frames(head, at, count, length):
            return name
    return None


def _run_of_frames(head: bytes, at: int, count: int, frame_bytes: _FrameBytes) -> bool:
    """True if `count` frames (or two, if `head` ends there) follow each other from `at` on."""
    for seen in range(count):
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
