"""The process that decodes Opus, on streams that PyAV and ffmpeg's container made."""

import io

import av
import numpy as np
import pytest

from asr_server.features.live_opus.worker import OggPackets, OpusToPcm
from asr_server.features.live_opus.worker import answer as worker_answer
from asr_server.processes import messages

RATE_HZ = 48_000


def _tone(seconds=2.0, channels=1):
    tone = 0.3 * np.sin(2 * np.pi * 440 * np.arange(int(seconds * RATE_HZ)) / RATE_HZ)
    return np.repeat(tone[:, None], channels, axis=1).astype(np.float32)


def _frames(sound):
    layout = "stereo" if sound.shape[1] == 2 else "mono"
    for begin in range(0, len(sound), 960):
        frame = av.AudioFrame.from_ndarray(sound[begin : begin + 960].reshape(1, -1), format="flt", layout=layout)
        frame.sample_rate, frame.pts = RATE_HZ, begin
        yield frame


def packets(sound):
    encoder = av.CodecContext.create("libopus", "w")
    encoder.sample_rate, encoder.format, encoder.layout = RATE_HZ, "flt", "stereo" if sound.shape[1] == 2 else "mono"
    return [bytes(packet) for frame in [*_frames(sound), None] for packet in encoder.encode(frame)]


def ogg(sound):
    file = io.BytesIO()
    with av.open(file, "w", format="ogg") as container:
        stream = container.add_stream("libopus", rate=RATE_HZ, layout="stereo" if sound.shape[1] == 2 else "mono")
        for frame in [*_frames(sound), None]:
            container.mux(stream.encode(frame))
    return file.getvalue()


def _level(pcm):
    samples = np.frombuffer(pcm, "<i2").astype(float) / 32_768
    return float(np.sqrt(np.mean(samples[len(samples) // 4 :] ** 2)))


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("rate_hz", [16_000, 48_000])
def test_packets_and_pieces_of_ogg_are_the_same_sound(channels, rate_hz):
    """Also in pieces of seven bytes, which end in the middle of a page's header."""
    sound = _tone(channels=channels)
    stream = OpusToPcm(rate_hz)
    by_packets = b"".join(stream.decoded(packet) for packet in packets(sound))
    container, stream = ogg(sound), OpusToPcm(rate_hz)
    by_pieces = b"".join(stream.decoded(container[at : at + 7]) for at in range(0, len(container), 7))
    for pcm in (by_packets, by_pieces):
        assert len(pcm) == pytest.approx(2 * rate_hz * 2, rel=0.03)
        assert _level(pcm) == pytest.approx(0.3 / np.sqrt(2), rel=0.05)


def test_what_is_no_ogg_page_is_refused():
    """Behind a page that was one; headers are no packets of sound."""
    container, reader = ogg(_tone(0.1)), OggPackets()
    assert all(not packet.startswith((b"OpusHead", b"OpusTags")) for packet in reader.push(container))
    with pytest.raises(ValueError, match="no page"):
        list(reader.push(bytes(40)))


def test_a_packet_without_end_is_refused():
    """Pages that go on and on would be kept for ever."""
    page = b"OggS" + bytes(22) + b"\xff" + 255 * b"\xff" + bytes(255 * 255)
    reader = OggPackets()
    with pytest.raises(ValueError, match="too long"):
        list(reader.push(page))


def test_small_packets_of_much_sound_are_bounded_and_the_stream_is_forgotten():
    """A page of 255 packets of one byte is half a minute of silence."""
    page = b"OggS" + bytes(22) + b"\xff" + 255 * b"\x01" + 255 * b"\x19"
    streams = {}
    form = {"stream": 1, "rate_hz": 16_000}
    with pytest.raises(ValueError, match="more sound"):
        worker_answer(form, page, streams)
    assert streams == {}
    assert messages.read(io.BytesIO(worker_answer(form, packets(_tone(0.1))[0], streams)).read).data
    assert list(streams) == [1]


def test_pages_that_hold_nothing_are_bounded():
    """Otherwise one frame would keep the process for a second, and with it all other sessions."""
    page = b"OggS" + bytes(23)
    assert list(OggPackets().push(10_000 * page)) == []
    with pytest.raises(ValueError, match="more segments"):
        list(OggPackets().push(10_001 * page))
    with pytest.raises(ValueError, match="a byte at least"):
        list(OggPackets().push(b"OggS" + bytes(22) + b"\xff" + bytes(255)))
