"""Recordings that are far larger than their files, and heads that lie: refused at once, without being taken in."""

import time

import pytest

from E2Etest.chaos import bombs
from E2Etest.drive.process import running
from E2Etest.drive.procfs import growth

pytestmark = [pytest.mark.performance, pytest.mark.guarantee("decoded-cap")]

LIMIT_S = 600  # twice its float32 samples are the bound on memory
TEN_HOURS_S = 36_000


@pytest.fixture(scope="module")
def server(tmp_path_factory, sample):
    """A running server that has decoded before."""
    with running(tmp_path_factory.mktemp("bombs") / "log", MAX_AUDIO_S=str(LIMIT_S), IDLE_TIMEOUT="0") as found:
        assert found.transcribe(sample[0]).json()["text"] == sample[1]
        yield found


def _refused(server, measured, file, code):
    """By how much server and decoder grew during the refusal, in MiB."""
    with growth(server.process.pid) as grown:
        began_s = time.monotonic()
        answer = server.transcribe(file)
        took_s = time.monotonic() - began_s
        server_mb, decoder_mb = grown()
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, code)
    measured("refusal_s", took_s)
    measured("memory_mib", server_mb + decoder_mb)
    return server_mb, decoder_mb


def _growth(seen):
    server_mb, decoder_mb = (max(figures) for figures in zip(*seen, strict=True))
    return f"server {server_mb:+.0f} MiB, decoder {decoder_mb:+.0f} MiB"


def test_ten_hours_of_silence_in_a_megabyte(server, sample, measured, note):
    """FLAC and Opus, whether the head tells the length, says that it is unknown, or says one second."""
    silence = bombs.flac(TEN_HOURS_S)
    opus = [bombs.opus(TEN_HOURS_S), bombs.opus(TEN_HOURS_S, claimed_s=1)]
    flac = [silence, bombs.claiming(silence, 0), bombs.claiming(silence, 8_000)]
    assert all(len(file) < 1_000_000 for file in opus + flac)
    seen = [_refused(server, measured, file, "audio_too_long") for file in opus + flac]
    note(f"10 h in 0.07 and 0.93 MB: {_growth(seen)}")
    assert server.transcribe(sample[0]).json()["text"] == sample[1]


def test_heads_that_lie_about_what_follows(server, sample, measured, note):
    """Tables of 2^28 entries, tags of 256 MiB, and sound of 4 GiB in channels that nobody has."""
    tagged = (b"ID3\3\0\0" + b"\x7f" * 4) * 40
    files = [bombs.mp4(b"stsz"), bombs.mp4(b"stts"), bombs.mp4(b"stsc"), tagged, bombs.wav(16_383, 2**32 - 1, 32)]
    seen = [_refused(server, measured, file, "invalid_audio") for file in files]
    seen.append(_refused(server, measured, bombs.wav(64, 768_000, 64), "audio_too_short"))
    note(f"false headers: {_growth(seen)}")
    assert server.transcribe(sample[0]).json()["text"] == sample[1]
