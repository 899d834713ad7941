"""Answers that are kept: which, how many bytes of them, and what recording them takes."""

import pytest

from asr_server.features.speech_output.cache import SpeechCache, SpokenAnswer
from asr_server.features.speech_output.requests import AudioChunk, SentenceBegun, SpeechDone, SpeechTimings

DONE = SpeechDone(5, 1, 100, timings=SpeechTimings(first_audio_ms=7.0))


def answer(size_bytes):
    """An answer that takes as much of the cache."""
    empty = SpokenAnswer((AudioChunk(0, b""),), DONE).size_bytes
    made = SpokenAnswer((AudioChunk(0, bytes(size_bytes - empty)),), DONE)
    assert made.size_bytes == size_bytes
    return made


async def ignore(event):
    pass


async def recorded(recorder, *chunks):
    """A sentence of these chunks."""
    await recorder.emit(SentenceBegun(0, "Hello.", 0, 6))
    for chunk in chunks:
        await recorder.emit(AudioChunk(0, chunk))


def test_the_least_recently_used_go_first():
    """Reading counts as use."""
    cache = SpeechCache(4_000)
    for key in "abcd":
        cache.put(key, answer(1_000))
    assert cache.get("a") is not None
    cache.put("e", answer(1_000))
    assert [key for key in "abcde" if cache.get(key)] == ["a", "c", "d", "e"]
    assert (cache.held_bytes, cache.hits, cache.misses) == (4_000, 5, 1)


def test_one_answer_takes_at_most_a_quarter():
    """A larger one would push out too many."""
    cache = SpeechCache(4_000)
    cache.put("large", answer(1_001))
    assert cache.get("large") is None
    cache.put("fits", answer(1_000))
    assert cache.get("fits")


def test_an_answer_replaces_that_of_its_key():
    """Its bytes count once."""
    cache = SpeechCache(8_000)
    for size_bytes in (2_000, 800, 900):
        cache.put("a", answer(size_bytes))
    assert cache.held_bytes == 900


async def test_a_recorded_answer_has_one_chunk_a_sentence_and_no_times():
    """Everything is passed on as it comes."""
    passed = []

    async def emit(event):
        passed.append(event)

    cache = SpeechCache(10_000)
    with cache.recording(emit) as recorder:
        await recorded(recorder, b"ab", b"cd")
        assert cache.recorded_bytes == 4
        made = recorder.answer(DONE)
    assert made.events == (SentenceBegun(0, "Hello.", 0, 6), AudioChunk(0, b"abcd"))
    assert (made.done.cached, made.done.timings, made.done.samples) == (True, SpeechTimings(), DONE.samples)
    assert [event.data for event in passed[1:]] == [b"ab", b"cd"]
    assert cache.recorded_bytes == 0


async def test_what_becomes_too_large_is_forgotten_at_once():
    """Alone, and with others that are not complete yet."""
    cache = SpeechCache(4_000)
    with cache.recording(ignore) as recorder:
        await recorded(recorder, bytes(1_000), b"x")
        assert cache.recorded_bytes == 0
        assert recorder.answer(DONE) is None
    with (
        cache.recording(ignore) as a,
        cache.recording(ignore) as b,
        cache.recording(ignore) as c,
        cache.recording(ignore) as d,
        cache.recording(ignore) as e,
    ):
        for recorder in (a, b, c, d, e):
            await recorded(recorder, bytes(900))
        assert [recorder.answer(DONE) is not None for recorder in (a, b, c, d, e)] == [True] * 4 + [False]
    assert cache.recorded_bytes == 0


async def test_a_failed_answer_gives_its_bytes_back():
    cache = SpeechCache(4_000)

    async def leave(event):
        if isinstance(event, AudioChunk):
            raise ConnectionError

    with pytest.raises(ConnectionError), cache.recording(leave) as recorder:
        await recorded(recorder, bytes(500))
    assert cache.recorded_bytes == 0
