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
