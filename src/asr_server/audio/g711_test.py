"""G.711 against ffmpeg's decoder, and against the extreme values of the standard."""

import av
import numpy as np

from asr_server.audio.g711 import Companding, decode


def _by_ffmpeg(data, codec):
    decoder = av.CodecContext.create(codec, "r")
    decoder.sample_rate, decoder.layout = 8_000, "mono"
    return np.concatenate([f.to_ndarray()[0] for f in decoder.decode(av.Packet(data))])


def test_every_byte_is_decoded_as_by_ffmpeg():
    codes = bytes(range(256))
    for law, codec in ((Companding.MU, "pcm_mulaw"), (Companding.A, "pcm_alaw")):
        assert np.frombuffer(decode(codes, law), "<i2").tolist() == _by_ffmpeg(codes, codec).tolist(), law


def test_the_ends_of_both_scales_and_silence():
    """The largest values of G.711 in 16 bits, and the codes that line equipment sends for silence."""
    assert np.frombuffer(decode(b"\x00\x80\xff\x7f", Companding.MU), "<i2").tolist() == [-32124, 32124, 0, 0]
    assert np.frombuffer(decode(b"\x2a\xaa\xd5\x55", Companding.A), "<i2").tolist() == [-32256, 32256, 8, -8]


def test_each_byte_becomes_a_sample_of_two_bytes():
    assert decode(b"", Companding.MU) == b""
    assert len(decode(bytes(160), Companding.A)) == 320
