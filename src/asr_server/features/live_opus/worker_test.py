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


def _layout(sound):
    return "stereo" if sound.shape[1] == 2 else "mono"


def _encoded(sound, encode):
    for begin in range(0, len(sound), 960):
        samples = sound[begin : begin + 960].reshape(1, -1)
        frame = av.AudioFrame.from_ndarray(samples, format="flt", layout=_layout(sound))
        frame.sample_rate, frame.pts = RATE_HZ, begin
        yield from encode(frame)
    yield from encode(None)


def packets(sound):
    encoder = av.CodecContext.create("libopus", "w")
    encoder.sample_rate, encoder.format, encoder.layout = RATE_HZ, "flt", _layout(sound)
    return [bytes(packet) for packet in _encoded(sound, encoder.encode)]


def ogg(sound):
    file = io.BytesIO()
    with av.open(file, "w", format="ogg") as container:
        for packet in _encoded(sound, container.add_stream("libopus", rate=RATE_HZ, layout=_layout(sound)).encode):
            container.mux(packet)
    return file.getvalue()


@pytest.mark.parametrize(("channels", "rate_hz"), [(1, 16_000), (2, 48_000)])
def test_packets_and_pieces_of_ogg_are_the_same_sound(channels, rate_hz):
    """Also in pieces of seven bytes, which end in the middle of a page's header."""
    sound = _tone(channels=channels)
    container = ogg(sound)
    for pieces in (packets(sound), [container[at : at + 7] for at in range(0, len(container), 7)]):
        stream = OpusToPcm(rate_hz)
        pcm = b"".join(map(stream.decoded, pieces))
        assert len(pcm) == pytest.approx(2 * rate_hz * 2, rel=0.03)
        samples = np.frombuffer(pcm, "<i2")[rate_hz // 2 :] / 32_768
        assert np.sqrt(np.mean(samples**2)) == pytest.approx(0.3 / np.sqrt(2), rel=0.05)


def test_what_is_no_ogg_page_is_refused():
    """Behind a page that was one; headers are no packets of sound."""
    container, reader = ogg(_tone(0.1)), OggPackets()
    assert all(not packet.startswith((b"OpusHead", b"OpusTags")) for packet in reader.push(container))
    with pytest.raises(ValueError, match="no page"):
        list(reader.push(bytes(40)))


def test_a_packet_without_end_is_refused():
    """Pages that go on and on would be kept for ever."""
    with pytest.raises(ValueError, match="too long"):
        list(OggPackets().push(b"OggS" + bytes(22) + b"\xff" + 255 * b"\xff" + bytes(255 * 255)))


def test_small_packets_of_much_sound_are_bounded_and_the_stream_is_forgotten():
    """A page of 255 packets of one byte is half a minute of silence."""
    page = b"OggS" + bytes(22) + b"\xff" + 255 * b"\x01" + 255 * b"\x19"
    streams, form = {}, {"stream": 1, "rate_hz": 16_000}
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
