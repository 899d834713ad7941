"""The process that decodes Opus, on streams that PyAV and ffmpeg's container made."""

import io

import av
import numpy as np
import pytest

from asr_server.features.live_opus.worker import OggPackets, OpusToPcm
from asr_server.features.live_opus.worker import answer as worker_answer
from asr_server.processes import messages

RATE_HZ = 48_000
PAGE = b"OggS" + bytes(22)  # the number of segments follows


def _tone(seconds=2.0):
    tone = 0.3 * np.sin(2 * np.pi * 440 * np.arange(int(seconds * RATE_HZ)) / RATE_HZ)
    return np.repeat(tone[:, None], 2, axis=1).astype(np.float32)


def _encoded(sound, encode):
    for begin in range(0, len(sound), 960):
        samples = sound[begin : begin + 960].reshape(1, -1)
        frame = av.AudioFrame.from_ndarray(samples, format="flt", layout="stereo")
        frame.sample_rate, frame.pts = RATE_HZ, begin
        yield from encode(frame)
    yield from encode(None)


def packets(sound):
    encoder = av.CodecContext.create("libopus", "w")
    encoder.sample_rate, encoder.format, encoder.layout = RATE_HZ, "flt", "stereo"
    return [bytes(packet) for packet in _encoded(sound, encoder.encode)]


def ogg(sound):
    file = io.BytesIO()
    with av.open(file, "w", format="ogg") as container:
        for packet in _encoded(sound, container.add_stream("libopus", rate=RATE_HZ, layout="stereo").encode):
            container.mux(packet)
    return file.getvalue()


@pytest.mark.parametrize("rate_hz", [16_000, RATE_HZ])
def test_packets_and_pieces_of_ogg_are_the_same_sound(rate_hz):
    """In stereo, and in pieces of seven bytes, which end in the middle of a page's header."""
    container = ogg(_tone())
    for pieces in (packets(_tone()), [container[at : at + 7] for at in range(0, len(container), 7)]):
        pcm = b"".join(map(OpusToPcm(rate_hz).decoded, pieces))
        assert len(pcm) == pytest.approx(2 * rate_hz * 2, rel=0.03)
        samples = np.frombuffer(pcm, "<i2")[rate_hz // 2 :] / 32_768
        assert np.sqrt(np.mean(samples**2)) == pytest.approx(0.3 / np.sqrt(2), rel=0.05)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (bytes(40), "no page"),
        (PAGE + b"\xff" + 255 * b"\xff" + bytes(255 * 255), "too long"),  # an endless packet would be kept for ever
        # Otherwise one frame would keep the process for a second, and with it all other sessions.
        (10_001 * (PAGE + b"\0"), "more segments"),
        (PAGE + b"\xff" + bytes(255), "a byte at least"),
    ],
)
def test_what_is_no_sound_is_refused(data, reason):
    reader = OggPackets()
    assert list(reader.push(ogg(_tone(0.1))))
    with pytest.raises(ValueError, match=reason):
        list(reader.push(data))


def test_small_packets_of_much_sound_are_bounded_and_the_stream_is_forgotten():
    """A page of 255 packets of one byte is half a minute of silence."""
    page = PAGE + b"\xff" + 255 * b"\x01" + 255 * b"\x19"
    streams, form = {}, {"stream": 1, "rate_hz": 16_000}
    with pytest.raises(ValueError, match="more sound"):
        worker_answer(form, page, streams)
    assert streams == {}
    assert messages.read(io.BytesIO(worker_answer(form, packets(_tone(0.1))[0], streams)).read).data
    assert list(streams) == [1]
