"""G.711 against ffmpeg's decoder, and against what the standard says of its ends."""

import av
import numpy as np
import pytest

from asr_server.audio.g711 import Companding, decode


def _by_ffmpeg(data, codec):
    decoder = av.CodecContext.create(codec, "r")
    decoder.sample_rate, decoder.layout = 8_000, "mono"
    return np.concatenate([f.to_ndarray()[0] for f in decoder.decode(av.Packet(data))])


@pytest.mark.parametrize(("law", "codec"), [(Companding.MU, "pcm_mulaw"), (Companding.A, "pcm_alaw")])
def test_every_byte_means_what_ffmpeg_says(law, codec):
    """All 256 codes."""
    codes = bytes(range(256))
    assert np.frombuffer(decode(codes, law), "<i2").tolist() == _by_ffmpeg(codes, codec).tolist()


def test_the_ends_of_both_scales_and_silence():
    """The largest values of G.711 in 16 bits, and the codes that line equipment sends for silence."""
    assert np.frombuffer(decode(b"\x00\x80\xff\x7f", Companding.MU), "<i2").tolist() == [-32124, 32124, 0, 0]
    assert np.frombuffer(decode(b"\x2a\xaa\xd5\x55", Companding.A), "<i2").tolist() == [-32256, 32256, 8, -8]


def test_a_sample_is_two_bytes_and_nothing_is_nothing():
    """Lengths."""
    assert decode(b"", Companding.MU) == b""
    assert len(decode(bytes(160), Companding.A)) == 320
