"""The blocking file client against the real server; the commands use the other one."""

import io

import pytest

from asr_server.client.files import FileClient, Span, TranscriptionRequest

pytestmark = pytest.mark.integration


def test_three_ways_give_the_same_words(cli_server, talks, words):
    """Whole, piece by piece, span by span; a path, a string or an open file."""
    path = talks / "hello.wav"
    with FileClient(cli_server.base) as client:
        assert client.transcribe(path) == f"{words}\n"
        assert "".join(client.deltas(str(path))) == words
        *_, whole = spans = list(client.spans(io.BytesIO(path.read_bytes())))
        with path.open("rb") as file:
            assert words in client.transcribe(file, TranscriptionRequest(language="English", hotwords=("kitchen",)))
    assert (whole.text, whole.whole, whole.language) == (words, True, "English")
    assert " ".join(s.text for s in spans if isinstance(s, Span) and not s.whole and s.text) == words


def test_leaving_early_frees_the_server(cli_server, long_talk):
    """Closing the iterator takes the work out of the queue."""
    with FileClient(cli_server.base) as client:
        deltas = client.deltas(long_talk)
        assert next(deltas)
        deltas.close()
        cli_server.wait_for(lambda health: health["queue"]["audio_held_s"] == 0)
