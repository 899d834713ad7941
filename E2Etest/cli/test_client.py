"""The file client against the real server: whole answers, deltas and spans, blocking and not."""

import io

import pytest

from asr_server.client.files import AsyncFileClient, FileClient, Span, TranscriptionRequest

pytestmark = pytest.mark.integration


def _joined(spans):
    return " ".join(s.text for s in spans if isinstance(s, Span) and not s.whole and s.text)


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
    assert _joined(spans) == words


async def test_the_same_without_blocking(cli_server, talks, words):
    """One client, many recordings at once."""
    import asyncio

    path = talks / "hello.wav"
    async with AsyncFileClient(cli_server.base) as client:
        texts = await asyncio.gather(*(client.transcribe(path) for _ in range(5)))
        assert "".join([piece async for piece in client.deltas(path)]) == words
        assert _joined([span async for span in client.spans(path)]) == words
    assert texts == [f"{words}\n"] * 5


def test_leaving_early_frees_the_server(cli_server, long_talk):
    """Closing the iterator takes the work out of the queue."""
    with FileClient(cli_server.base) as client:
        deltas = client.deltas(long_talk)
        assert next(deltas)
        deltas.close()
        cli_server.wait_for(lambda health: health["queue"]["audio_held_s"] == 0)
