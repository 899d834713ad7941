"""Clips for the tests of this package, encoded on the fly into anonymous files."""

import os
import struct
from contextlib import aclosing

import av
import numpy as np
import pytest_asyncio

from asr_server.audio.decode import Decoder
from asr_server.audio.decoder_wire import DecodeLimits
from asr_server.core.audio import SAMPLE_RATE

LIMITS = DecodeLimits(max_audio_s=30.0)


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def decoder():
    """One decoder for all tests of the package, which share an event loop."""
    decoder = Decoder(LIMITS)
    yield decoder
    await decoder.close()


def open_bytes(content):
    file = os.fdopen(os.memfd_create("clip"), "w+b")
    file.write(content)
    file.flush()
    return file


def tone(seconds, rate_hz, channels=1, hz=440.0):
    """(channels, n) float32, amplitude 0.4."""
    wave = 0.4 * np.sin(2 * np.pi * hz * np.arange(round(seconds * rate_hz)) / rate_hz)
    return np.tile(wave.astype(np.float32), (channels, 1))


FORMATS = [  # container, codec, rate in Hz, channels, how much the length may differ in s
    ("flac", "flac", 44_100, 2, 0),
    ("ogg", "flac", 48_000, 1, 0),
    ("ogg", "libopus", 48_000, 2, 0.001),
    ("ogg", "vorbis", 44_100, 2, 0.05),
    ("webm", "libopus", 48_000, 1, 0.03),
    ("mp3", "libmp3lame", 44_100, 2, 0.001),
    ("adts", "aac", 44_100, 1, 0.08),
    ("mp4", "aac", 48_000, 2, 0.04),
    ("ipod", "alac", 44_100, 2, 0.0),
    ("mov", "pcm_s16be", 48_000, 1, 0.0),
    ("matroska", "pcm_f32le", 32_000, 2, 0.0),
    ("aiff", "pcm_s24be", 44_100, 2, 0.0),
    ("caf", "pcm_s16le", 16_000, 1, 0.0),
    ("w64", "pcm_s16le", 96_000, 2, 0.0),
    ("wav", "pcm_u8", 16_000, 1, 0.0),
    ("wav", "pcm_alaw", 8_000, 1, 0.0),
    ("wav", "pcm_mulaw", 8_000, 1, 0.0),
    ("wav", "adpcm_ms", 22_050, 1, 0.1),
    ("au", "g726le", 8_000, 1, 0.0),
    ("wv", "wavpack", 48_000, 2, 0.0),
    ("ac3", "ac3", 48_000, 2, 0.005),
    ("avi", "libmp3lame", 44_100, 2, 0.05),
    ("asf", "wmav2", 44_100, 2, 0.02),
    ("flv", "libmp3lame", 44_100, 1, 0.05),
    ("mpegts", "mp2", 48_000, 1, 0.02),
    ("mpegts", "aac", 44_100, 2, 0.08),
    ("mpegts", "libopus", 48_000, 2, 0.03),
    ("vob", "ac3", 48_000, 2, 0.01),
    ("vob", "pcm_dvd", 48_000, 2, 0.0),
    ("amr", "libopencore_amrnb", 8_000, 1, 0.02),
]
_BITS_PER_S = {"amr": "12200", "asf": "96000"}


def encode(container, codec, samples, rate_hz, **options):
    """`samples` (channels, n) in a container; what the encoder wants of format and frame size is seen to."""
    file = open_bytes(b"")
    layout = {1: "mono", 2: "stereo", 6: "5.1", 8: "7.1"}[samples.shape[0]]
    with av.open(file, "w", format=container) as out:
        options = {"b": _BITS_PER_S[container]} if container in _BITS_PER_S else {"strict": "experimental"} | options
        stream = out.add_stream(codec, rate=rate_hz, layout=layout, options=options)
        wanted = stream.codec_context.codec.audio_formats
        resampler = av.AudioResampler(format=wanted[0] if wanted else "fltp", layout=layout, rate=rate_hz)
        # PyAV makes no frame of eight separate channels.
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(samples.T).reshape(1, -1), format="flt", layout=layout)
        frame.sample_rate = rate_hz
        stream.codec_context.open()
        fifo = av.AudioFifo()
        for converted in [*resampler.resample(frame), *resampler.resample(None)]:
            fifo.write(converted)
        size = stream.codec_context.frame_size or 1024
        while piece := fifo.read(size, partial=True):
            out.mux(stream.encode(piece))
        out.mux(stream.encode(None))
    file.flush()
    return file


def wav(pcm, rate_hz=16_000, channels=1, bits=16, tag=1, **lies):
    """A WAV of ready-made sample bytes. `tag`: 1 PCM, 3 float, 6 A-law, 7 mu-law. `lies`: riff_bytes, data_bytes."""
    align = channels * bits // 8
    fmt = struct.pack("<HHIIHH", tag, channels, rate_hz, rate_hz * align & 0xFFFF_FFFF, align, bits)
    head = struct.pack("<4sI8sI", b"RIFF", lies.get("riff_bytes", 36 + len(pcm)), b"WAVEfmt ", len(fmt)) + fmt
    return open_bytes(head + b"data" + struct.pack("<I", lies.get("data_bytes", len(pcm))) + pcm)


def pcm16(samples):
    """(channels, n) float32 as interleaved 16 bit."""
    return np.round(samples.T * 32_767).astype("<i2").tobytes()


async def decoded(decoder, file, progress=None, caller=""):
    """All samples of a file."""
    async with aclosing(decoder.stream(file, progress, caller)) as blocks:
        return np.concatenate([block async for block in blocks])


def is_tone(samples, seconds, slack_s=0.0):
    """Return True if this is `tone(seconds, ...)`: length within `slack_s`, pitch within 2 Hz and level within 2 dB."""
    middle = samples[len(samples) // 4 : len(samples) * 3 // 4]
    spectrum = np.abs(np.fft.rfft(middle * np.hanning(len(middle))))
    pitch_hz = float(spectrum.argmax()) * SAMPLE_RATE / len(middle)
    level_db = 20 * np.log10(np.sqrt(np.mean(middle**2)) / (0.4 / np.sqrt(2)))
    off_s = abs(len(samples) / SAMPLE_RATE - seconds)
    return abs(pitch_hz - 440) <= 2 and abs(level_db) <= 2 and off_s <= slack_s + 1.5 / SAMPLE_RATE


def read_all(file):
    """The content of a file, which is closed."""
    with file:
        file.seek(0)
        return file.read()


def chunk(name, body):
    return name + struct.pack("<I", len(body)) + body + bytes(len(body) % 2)


# The codecs of picture and sound for each container of films. H.264 has pictures out of order, which get no time of
# decoding in Matroska.
FILMS = {
    "mp4": ("mpeg4", "aac"),
    "mov": ("libx264", "aac"),
    "matroska": ("libx264", "aac"),
    "avi": ("mpeg4", "mp2"),  # its writer leaves out late starts and holes
    "asf": ("wmv2", "mp2"),
    "flv": ("libx264", "aac"),
    "mpegts": ("libx264", "aac"),
    "vob": ("mpeg2video", "mp2"),
}


def film(container, sound, late_s=0.0, pause_s=0.0, begins_s=0.0):
    """Two seconds of black from `begins_s` on the container's clock. `sound` (1, n), mono at 48 kHz or None, begins
    `late_s` after the picture, and has a hole of `pause_s` after its first second."""
    file = open_bytes(b"")
    with av.open(file, "w", format=container) as out:
        picture_codec, sound_codec = FILMS[container]
        video = out.add_stream(picture_codec, rate=25, width=64, height=64, pix_fmt="yuv420p")
        audio = out.add_stream(sound_codec, rate=48_000, layout="mono") if sound is not None else None
        for number in range(50):
            picture = av.VideoFrame(64, 64, "yuv420p")
            picture.pts = round(25 * begins_s) + number
            out.mux(video.encode(picture))
        out.mux(video.encode(None))
        if audio:
            sample_format, step = audio.codec_context.format.name, audio.codec_context.frame_size
            if sample_format == "s16":
                sound = np.round(sound * 32_767).astype(np.int16)
            for at in range(0, sound.shape[1], step):
                piece = np.ascontiguousarray(sound[:, at : at + step])
                frame = av.AudioFrame.from_ndarray(piece, sample_format, "mono")
                hole_s = begins_s + late_s + (pause_s if at >= 48_000 else 0.0)
                frame.sample_rate, frame.pts = 48_000, at + round(48_000 * hole_s)
                out.mux(audio.encode(frame))
            out.mux(audio.encode(None))
    file.flush()
    return file
