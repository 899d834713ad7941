"""The process that decodes Opus: any number of streams, one request at a time.

Run as `python -m asr_server.features.live_opus.worker` with pipes as standard input and output.
"""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Iterator
from typing import Any

import av

from asr_server.processes import messages, worker

_MEMORY_BYTES = 512 * 2**20
_REQUEST_CPU_S = 20.0
_MAX_SOUND_S = 20  # of a request: a packet of one byte may hold 0.12 s
_OGG = b"OggS"
# The header of an Ogg page (RFC 3533, section 6): pattern, version, type, position, serial number, page number,
# checksum, and the number of segments, whose sizes follow.
_PAGE = struct.Struct("<4sBBqIIIB")
_WHOLE_SEGMENT = 255  # the packet continues in the next segment
_MAX_PACKET_BYTES = 61_440  # 48 frames of 1,275 bytes and their lengths (RFC 6716, section 3.2)
_MAX_SEGMENTS = 10_000  # of a request, and its pages: more than 20 s of the shortest packets need
_HEADERS = (b"OpusHead", b"OpusTags")


class OggPackets:
    """The packets of an Ogg stream that comes in pieces."""

    def __init__(self) -> None:
        self._bytes = bytearray()  # less than a page
        self._packet = bytearray()  # the beginning of a packet that continues in the next page

    def push(self, data: bytes) -> Iterator[bytes]:
        """Add a piece, and yield the packets that it completes. Raises ValueError if this is not an Ogg stream."""
        self._bytes += data
        begin = count = 0
        while len(self._bytes) >= begin + _PAGE.size:
            pattern, *_, segments = _PAGE.unpack_from(self._bytes, begin)
            if pattern != _OGG:
                raise ValueError("no page begins here")
            head = begin + _PAGE.size + segments
            if (count := count + 1 + segments) > _MAX_SEGMENTS:
                raise ValueError("more segments than a request may have")
            sizes = self._bytes[begin + _PAGE.size : head]
            end = head + sum(sizes)
            if len(self._bytes) < end:
                break
            yield from self._packets(sizes, self._bytes[head:end])
            begin = end
        del self._bytes[:begin]

    def _packets(self, sizes: bytearray, body: bytearray) -> Iterator[bytes]:
        begin = 0
        for size in sizes:
            self._packet += body[begin : begin + size]
            begin += size
            if len(self._packet) > _MAX_PACKET_BYTES:
                raise ValueError("the packet is too long")
            if size < _WHOLE_SEGMENT:
                packet, self._packet = bytes(self._packet), bytearray()
                if not packet:
                    raise ValueError("a packet of Opus has a byte at least")
                if not packet.startswith(_HEADERS):
                    yield packet


class OpusToPcm:
    """One stream. Its first bytes say whether it is Ogg."""

    def __init__(self, rate_hz: int) -> None:
        self._codec = av.CodecContext.create("libopus", "r")
        self._resampler = av.AudioResampler("s16", "mono", rate_hz)
        self._max_bytes = 2 * rate_hz * _MAX_SOUND_S
        self._ogg: OggPackets | None = None
        self._has_begun = False

    def decoded(self, data: bytes) -> bytes:
        """Return the sound of the packets that are complete. Raises ValueError and PyAV's errors."""
        if not self._has_begun:
            self._has_begun, self._ogg = True, OggPackets() if data.startswith(_OGG) else None
        pcm = bytearray()
        for packet in [data] if self._ogg is None else self._ogg.push(data):
            for frame in self._codec.decode(av.Packet(packet)):
                for part in self._resampler.resample(frame):
                    pcm += bytes(part.planes[0])[: part.samples * 2]
            if len(pcm) > self._max_bytes:
                raise ValueError("more sound than a request may have")
        return bytes(pcm)


def main() -> None:
    """Answer requests until the server closes the pipe."""
    worker.prepare()
    av.logging.set_level(None)
    OpusToPcm(16_000).decoded(b"\xf8\xff\xfe")  # a packet of silence, so that imports of the first use happen now
    worker.confine(_MEMORY_BYTES)
    worker.serve(sys.stdin.buffer, sys.stdout.buffer, answer, _REQUEST_CPU_S)
    os._exit(0)


def answer(content: dict[str, Any], data: bytes, streams: dict[int, OpusToPcm]) -> bytes:
    """Answer a request with the PCM that is ready. A stream that fails is forgotten."""
    number = content["stream"]
    if number not in streams:
        streams[number] = OpusToPcm(content["rate_hz"])
    try:
        return messages.packed({}, streams[number].decoded(data))
    except BaseException:
        del streams[number]
        raise


if __name__ == "__main__":
    main()
