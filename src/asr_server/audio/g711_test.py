"""G.711 against ffmpeg's decoder, and against the extreme values of the standard."""

import av
import numpy as np

from asr_server.audio.g711 import Companding, decode


def test_every_byte_is_decoded_as_by_ffmpeg():
    codes = bytes(range(256))
    for law, codec in ((Companding.MU, "pcm_mulaw"), (Companding.A, "pcm_alaw")):
        decoder = av.CodecContext.create(codec, "r")
        decoder.sample_rate, decoder.layout = 8_000, "mono"
        expected = np.concatenate([frame.to_ndarray()[0] for frame in decoder.decode(av.Packet(codes))])
        assert np.array_equal(np.frombuffer(decode(codes, law), "<i2"), expected), law
