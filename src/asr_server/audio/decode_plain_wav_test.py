"""Plain WAV files against the decoder: the same samples, or none."""

import io
import struct

import numpy as np
import pytest

from asr_server.audio import decode
from asr_server.audio import decoder_child as child
from asr_server.audio.conftest import chunk, open_bytes, pcm16, read_all, tone, wav
from asr_server.audio.decoder_wire import DecodeError, DecodeRequest
from asr_server.core.audio import SAMPLE_RATE
from asr_server.processes import messages

PCM = pcm16(tone(0.5, SAMPLE_RATE))


def _decoded(content):
    """Return the decoder's samples, made in this process; None if it refuses."""
    request = DecodeRequest(len(content), 600.0, 0, 0.0, 0.0, 0.0)
    with open_bytes(content) as source, open_bytes(b"") as out:
        try:
            child.decode(request, source.fileno(), out.fileno())
        except (DecodeError, OSError, ValueError):
            return None
        replies, pcm = io.BytesIO(read_all(out)), b""
    while message := messages.read(replies.read):
        pcm += message.data
    return np.frombuffer(pcm, np.float32)


PLAIN = read_all(wav(PCM))
FMT = PLAIN[12:36]
DATA = chunk(b"data", PCM)


def _riff(*chunks):
    body = b"WAVE" + b"".join(chunks)
    return b"RIFF" + struct.pack("<I", len(body)) + body


@pytest.mark.parametrize(
    "content",
    [
        PLAIN,
        read_all(wav(PCM, riff_bytes=0)),
        _riff(FMT, chunk(b"LIST", b"INFOISFT\x03\0\0\0abc"), DATA),
        _riff(chunk(b"JUNK", bytes(27)), FMT, DATA),
        _riff(chunk(b"fmt ", FMT[8:] + bytes(2)), chunk(b"fact", bytes(4)), DATA),
    ],
)
def test_the_samples_are_those_of_the_decoder(content):
    """The files have the chunks that programs write around the samples."""
    found = decode.plain_samples(content)
    assert found is not None
    assert np.array_equal(found / np.float32(32_768), _decoded(content))
    assert len(found) == SAMPLE_RATE // 2


def test_a_damaged_head_gives_the_samples_of_the_decoder_or_none():
    """The test makes 1,000 files with one to three changed bytes in their first 80."""
    rng, content = np.random.default_rng(0), _riff(FMT, chunk(b"LIST", b"INFOISFT\x04\0\0\0abcd"), DATA)
    taken = 0
    for _ in range(1_000):
        damaged = np.frombuffer(content, np.uint8).copy()
        where = rng.integers(0, 80, rng.integers(1, 4))
        damaged[where] = rng.choice([0, 1, 2, 16, 255, *rng.integers(0, 256, 3)], len(where))
        found = decode.plain_samples(damaged.tobytes())
        if found is not None:
            taken += 1
            decoded = _decoded(damaged.tobytes())
            assert decoded is not None
            assert np.array_equal(found / np.float32(32_768), decoded), damaged[:80].tobytes()
    assert 50 < taken < 950


def test_a_long_file_is_not_read():
    """A long file is more than fits into memory at once, for each of many callers. Its position does not change."""
    for pcm, is_read in ((bytes(decode.MAX_PLAIN_BYTES), False), (PCM, True)):
        with wav(pcm) as file:
            file.seek(7)
            assert (decode.read_plain_wav(file) is not None) == is_read
            assert file.tell() == 7
