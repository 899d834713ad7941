"""A child process of the fork server: it decodes one file and exits. One descriptor in, one out."""

from __future__ import annotations

import json
import os
import struct

import av
import av.subtitles.codeccontext  # PyAV imports these two at the first file with subtitles, when nothing can be opened
import av.subtitles.stream
import numpy as np

from asr_server.audio.channels import interleaved, kept_channels
from asr_server.audio.decoder_wire import (
    CHANNELS,
    CLAIM,
    HEADER,
    MAX_PCM_BYTES,
    MIN_DURATION_S,
    DecodeError,
    DecodeRequest,
    FrameType,
)
from asr_server.audio.demuxer import AudioBlock, Demuxer
from asr_server.audio.resample import Resampler, Samples
from asr_server.processes import sandbox

_WARM_UP_RATE_HZ = 48_000
_COUNT_SLACK_S = 1.0  # packets include the encoder's delay and padding, which decoding takes off


def run(message: bytes, source_fd: int, out_fd: int) -> None:
    """Enter the sandbox and decode the file."""
    request = DecodeRequest(**json.loads(message))
    sandbox.lock(request.memory_bytes, request.cpu_s)
    _write(out_fd, HEADER.pack(FrameType.STARTED, 0))
    _write(out_fd, HEADER.pack(_outcome(request, source_fd, out_fd), 0))


def warm_up() -> None:
    """Decode a WAV of silence: PyAV, numpy and soxr import files at first use, which the sandbox would forbid."""
    np.seterr(all="ignore")
    av.logging.set_level(None)  # libav's messages quote the file
    silence = bytes(8 * _WARM_UP_RATE_HZ // 2)
    fmt = struct.pack("<HHIIHH", 3, 2, _WARM_UP_RATE_HZ, 8 * _WARM_UP_RATE_HZ, 8, 32)
    chunks = b"fmt " + struct.pack("<I", len(fmt)) + fmt + b"data" + struct.pack("<I", len(silence)) + silence
    wav = b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks
    source_fd, null_fd = os.memfd_create("warm-up"), os.open(os.devnull, os.O_WRONLY)
    os.write(source_fd, wav)
    decode(DecodeRequest(len(wav), 1.0, 0, 0.0, 0.0, 0.0), source_fd, null_fd)
    os.close(source_fd)
    os.close(null_fd)


def _outcome(request: DecodeRequest, source_fd: int, out_fd: int) -> FrameType:
    try:
        return decode(request, source_fd, out_fd)
    except DecodeError as error:
        return error.outcome
    except Exception:  # whatever libav, numpy or the memory limit raise here, this file cannot be decoded
        return FrameType.INVALID_AUDIO


def decode(request: DecodeRequest, source_fd: int, out_fd: int) -> FrameType:
    """Write the file's PCM frames to `out_fd` and return how it ended. Raises `DecodeError` and libav's errors.

    The duration that the headers claim is trusted until decoding passes it (never, if it is missing or over the
    limit). Then the packets are counted before more is decoded, so that ten hours of silence in a megabyte are refused
    at once. A file that takes too much CPU time for its next block of audio ends the process.
    """
    sandbox.limit_cpu_from_now(request.first_cpu_s)
    demuxer, output = Demuxer(source_fd, request.file_bytes), _Output(out_fd, request)
    claimed_s = demuxer.claimed_s() or 0.0
    trusted_s = claimed_s if claimed_s <= request.max_audio_s else 0.0
    if trusted_s > 0:
        _write(out_fd, HEADER.pack(FrameType.CLAIM, CLAIM.size) + CLAIM.pack(trusted_s))
    max_samples = round(request.max_audio_s * request.rate_hz) + 1
    written = 0
    for block in demuxer.blocks():
        written += output.write(block)
        sandbox.limit_cpu_from_now(request.block_cpu_s)
        if written > max_samples:
            return FrameType.AUDIO_TOO_LONG
        if written > (trusted_s + _COUNT_SLACK_S) * request.rate_hz:
            trusted_s = float("inf")
            if Demuxer(source_fd, request.file_bytes).is_longer_than(request.max_audio_s + _COUNT_SLACK_S):
                return FrameType.AUDIO_TOO_LONG
    written += output.flush()
    if written > max_samples:
        return FrameType.AUDIO_TOO_LONG
    if written < MIN_DURATION_S * request.rate_hz:
        return FrameType.INVALID_AUDIO if demuxer.damaged else FrameType.AUDIO_TOO_SHORT
    return FrameType.END


class _Output:
    """Writes the PCM frames. The channels of the first block are those of the file."""

    def __init__(self, out_fd: int, request: DecodeRequest) -> None:
        self._out_fd, self._max_channels, self._rate_hz = out_fd, request.max_channels, request.rate_hz
        self._channels = 0  # unknown
        self._resampler = Resampler()

    def write(self, block: AudioBlock) -> int:
        """Returns how many samples of each channel were written."""
        if not self._channels:
            found = len(block.samples)
            self._channels = kept_channels(found, self._max_channels)
            self._resampler = Resampler(self._channels, self._rate_hz)
            if self._max_channels > 1:
                _write(self._out_fd, HEADER.pack(FrameType.CHANNELS, CHANNELS.size) + CHANNELS.pack(found))
        return self._pcm(self._resampler.push(interleaved(block.samples, self._channels), block.rate_hz))

    def flush(self) -> int:
        """Write what the resampler still holds. Returns how many samples of each channel were written."""
        return self._pcm(self._resampler.flush())

    def _pcm(self, samples: Samples) -> int:
        """Frames of at most `MAX_PCM_BYTES`, which end between two samples of all channels."""
        if not samples.size:
            return 0
        payload = np.ascontiguousarray(samples).data.cast("B")
        step = MAX_PCM_BYTES - MAX_PCM_BYTES % (4 * self._channels)
        for at in range(0, len(payload), step):
            piece = payload[at : at + step]
            _write(self._out_fd, HEADER.pack(FrameType.PCM, len(piece)))
            _write(self._out_fd, piece)
        return len(samples)


def _write(fd: int, data: bytes | memoryview) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]
