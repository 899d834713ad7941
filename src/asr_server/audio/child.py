"""The one file that a child of the zygote decodes, from lock-in to outcome; one descriptor in, one out."""

from __future__ import annotations

import os
import socket
import struct
from typing import NoReturn

import numpy as np

from asr_server.audio import sandbox
from asr_server.audio.demuxer import Demuxer
from asr_server.audio.resample import Resampler, Samples
from asr_server.audio.wire import CLAIM, HEADER, JOB_BYTES, MAX_PCM_BYTES, DecodeError, DecodeFrame, DecodeRequest
from asr_server.core.audio import SAMPLE_RATE

MIN_SAMPLES = SAMPLE_RATE // 10  # 0.1 s: less than any word
_WARM_UP_RATE_HZ = 48_000
_COUNT_SLACK_S = 1.0  # packets include the encoder's delay and padding, which decoding takes off


def live(orders: socket.socket, parent_pid: int) -> NoReturn:
    """The life of a child: make ready, wait for one job on `orders`, lock in, decode, exit.

    Making ready includes a decode of silence: a forked process pays for each page at its first write, 4 ms in all,
    and pays that while nobody waits.
    """
    try:
        sandbox.prepare((orders.fileno(),), parent_pid)
        warm_up()
        message, fds, _, _ = socket.recv_fds(orders, JOB_BYTES, 2)
        if message:
            source_fd, out_fd = fds
            orders.close()
            job = DecodeRequest.from_bytes(message)
            sandbox.lock(job.memory_bytes, job.cpu_s)
            _write(out_fd, HEADER.pack(_outcome(job, source_fd, out_fd), 0))
    finally:
        os._exit(0)


def warm_up() -> None:
    """Decode a WAV of silence: what PyAV, numpy and soxr import and build at first use cannot be once locked in."""
    silence = bytes(8 * _WARM_UP_RATE_HZ // 2)
    fmt = struct.pack("<HHIIHH", 3, 2, _WARM_UP_RATE_HZ, 8 * _WARM_UP_RATE_HZ, 8, 32)
    chunks = b"fmt " + struct.pack("<I", len(fmt)) + fmt + b"data" + struct.pack("<I", len(silence)) + silence
    wav = b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks
    source_fd, null_fd = os.memfd_create("warm-up"), os.open(os.devnull, os.O_WRONLY)
    os.write(source_fd, wav)
    decode(DecodeRequest(len(wav), 1.0, 1, 0), source_fd, null_fd)
    os.close(source_fd)
    os.close(null_fd)


def _outcome(job: DecodeRequest, source_fd: int, out_fd: int) -> DecodeFrame:
    try:
        return decode(job, source_fd, out_fd)
    except DecodeError as refusal:
        return refusal.kind
    except Exception:  # the edge: whatever libav, numpy or memory say about this file, they say that it is no audio
        return DecodeFrame.INVALID_AUDIO


def decode(job: DecodeRequest, source_fd: int, out_fd: int) -> DecodeFrame:
    """Write the file's PCM frames to `out_fd` and say how it ended. Raises `DecodeError` and libav's errors.

    The claim of a header is believed only until decoding passes it (at once if it is missing or over the limit); then
    the packets are counted first, so that ten hours of silence in a megabyte are refused without being decoded.
    """
    track, resampler = Demuxer(source_fd, job.file_bytes), Resampler()
    claimed_s = track.claimed_s() or 0.0
    trusted_s = claimed_s if claimed_s <= job.max_audio_s else 0.0
    if trusted_s > 0:
        _write(out_fd, HEADER.pack(DecodeFrame.CLAIM, CLAIM.size) + CLAIM.pack(trusted_s))
    max_samples = round(job.max_audio_s * SAMPLE_RATE) + 1
    written = 0
    for region in track.speech_regions():
        written += _write_pcm(out_fd, resampler.push(region.samples, region.rate_hz))
        if written > max_samples:
            return DecodeFrame.AUDIO_TOO_LONG
        if written > (trusted_s + _COUNT_SLACK_S) * SAMPLE_RATE:
            trusted_s = float("inf")
            if Demuxer(source_fd, job.file_bytes).lasts_over(job.max_audio_s + _COUNT_SLACK_S):
                return DecodeFrame.AUDIO_TOO_LONG
    written += _write_pcm(out_fd, resampler.flush())
    if written > max_samples:
        return DecodeFrame.AUDIO_TOO_LONG
    if written < MIN_SAMPLES:
        return DecodeFrame.INVALID_AUDIO if track.damaged else DecodeFrame.AUDIO_TOO_SHORT
    return DecodeFrame.END


def _write_pcm(out_fd: int, samples: Samples) -> int:
    """Frames of at most `MAX_PCM_BYTES`; returns the samples written."""
    if not samples.size:
        return 0
    payload = np.ascontiguousarray(samples).data.cast("B")
    for at in range(0, len(payload), MAX_PCM_BYTES):
        piece = payload[at : at + MAX_PCM_BYTES]
        _write(out_fd, HEADER.pack(DecodeFrame.PCM, len(piece)))
        _write(out_fd, piece)
    return samples.size


def _write(fd: int, data: bytes | memoryview) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]
