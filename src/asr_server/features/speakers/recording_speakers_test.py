"""A recording whose speakers are lost: its text goes on, and its labels say why there are none."""

import asyncio
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from unittest.mock import AsyncMock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr_server.core.errors import SpeakersUnavailable
from asr_server.core.transcript import MAX_SPEAKERS, Segment, TimeSource, Token, UnheardReason, Word
from asr_server.features.speakers.diarization.turns import Diarization, SpeakerCount, Turn
from asr_server.features.speakers.recording_speakers import RecordingSpeakers, labelled, speaker_step
from asr_server.recordings.pipeline import RunOptions
from asr_server.recordings.requests import TranscriptionRequest
from asr_server.recordings.segmenter import RecordingSignal
from asr_server.text import words

NAMES = ["A", "Bob", "C"]


def segment(text, *, start_ms=0, tokens=None):
    """Return a segment with a second and a token a word, unless `tokens` are given, behind ids that write nothing."""
    split = words.split(text)
    starts = range(start_ms, start_ms + 1000 * len(split), 1000)
    timed = [Word(word, start, start + 900, TimeSource.ALIGNED) for word, start in zip(split, starts, strict=True)]
    gaps = words.gaps(text, split)
    written = [(gap + word).encode() for gap, word in zip(gaps, split, strict=True)] if tokens is None else tokens
    spoken = tuple(Token(each, -0.1 * place) for place, each in enumerate(written))
    ids, counts = tuple(range(2 + len(spoken))), {"prompt_tokens": 7, "audio_tokens": 9}
    whole = Segment(start_ms, start_ms + 1000 * len(split), text, "English", ids, -0.5, 0.1, **counts)
    return replace(whole, cut_short=UnheardReason.BUDGET, words=tuple(timed), spoken=spoken)


def divided(whole, *turns):
    """The parts by turns of (speaker, start, end) in seconds."""
    return labelled([whole], [Turn(who, 1000 * start, 1000 * end) for who, start, end in turns], NAMES)


def test_a_part_has_its_own_words_times_tokens_and_probability():
    first, second = divided(segment("Are you there? Yes, I am."), (0, 0, 3), (2, 3, 6))
    assert [(part.text, part.speaker) for part in (first, second)] == [("Are you there?", "A"), ("Yes, I am.", "C")]
    assert (first.start_ms, first.end_ms, second.start_ms, second.end_ms) == (0, 2900, 3000, 6000)
    assert (first.tokens, second.tokens) == ((0, 1, 2, 3, 4), (5, 6, 7))
    assert first.mean_logprob == pytest.approx(-0.1)
    assert second.mean_logprob == pytest.approx(-0.4)
    assert (first.complete, second.complete) == (True, False)  # only the end of the segment was cut off


@pytest.mark.parametrize(
    ("text", "turns", "texts"),
    [
        # Each word is looked for behind the one before.
        ("No. No. No, a nap.", ((0, 0, 1), (1, 1, 2), (0, 2, 5)), ["No.", "No.", "No, a nap."]),
        ("你好吗？我很好。", ((0, 0, 3), (1, 3, 6)), ["你好吗？", "我很好。"]),
        ("هل أنت هنا؟ نعم، أنا هنا.", ((0, 0, 3), (1, 3, 6)), ["هل أنت هنا؟", "نعم، أنا هنا."]),
        ("“Are you?” “Yes.”", ((0, 0, 2), (1, 2, 3)), ["“Are you?”", "“Yes.”"]),
        ("Hello.", (), ["Hello."]),
    ],
)
def test_a_part_has_the_text_of_its_words(text, turns, texts):
    """Marks stay with the words that they belong to, with spaces between words and without."""
    assert [part.text for part in divided(segment(text), *turns)] == texts


def test_a_part_without_a_token_has_the_probability_of_the_whole_segment():
    """A token across two parts belongs to the first."""
    first, second = divided(segment("你好。我好。", tokens=["你好。我好。".encode()]), (0, 0, 2), (1, 2, 4))
    assert (len(first.spoken), len(second.spoken), second.mean_logprob) == (1, 0, -0.5)


def test_a_text_without_words_has_the_speaker_of_its_time():
    whole = replace(segment("42", start_ms=5000), words=())
    assert [part.speaker for part in divided(whole, (0, 0, 5), (1, 5, 6))] == ["Bob"]


def test_words_that_the_text_does_not_have_are_kept_with_what_is_said_around_them():
    whole = segment("Are you there? Yes, I am.")
    strange = [replace(word, text="zzz") if place in (1, 4) else word for place, word in enumerate(whole.words)]
    first, second = divided(replace(whole, words=tuple(strange)), (0, 0, 3), (1, 3, 6))
    assert (first.text, second.text) == ("Are you there?", "Yes, I am.")
    assert [word.text for word in (*first.words, *second.words)] == [word.text for word in strange]


TEXTS = st.one_of(
    st.lists(st.sampled_from(["no", "No.", "a", "banana,", "你好", "。", "สวัสดี", "نعم", "«x»", "-"]), max_size=12).map(
        " ".join
    ),
    st.text(alphabet=st.sampled_from("ab .,!?你好。《》नमस्ते\u200fא"), max_size=30),
)
TURN = st.tuples(st.integers(0, 2), st.integers(0, 12_000), st.integers(100, 5_000))
TURNS = st.lists(TURN.map(lambda turn: Turn(turn[0], turn[1], turn[1] + turn[2])), min_size=1, max_size=8)


@given(TEXTS, TURNS, st.data())
def test_the_parts_are_the_whole(text, turns, data):
    """Texts, words, tokens and counts add up. Every part has a text and a time, and neighbours differ."""
    text = text.strip()
    written = f" {text}".encode()
    edges = sorted(data.draw(st.sets(st.integers(1, len(written)), max_size=8)) | {len(written)})
    whole = segment(text, tokens=[written[begin:end] for begin, end in pairwise([0, *edges])])
    parts = labelled([whole], turns, NAMES)
    if len(parts) == 1:
        (part,) = parts
        assert replace(part, speaker=None, words=whole.words, mean_logprob=whole.mean_logprob) == whole
    if not whole.words:
        assert len(parts) == 1
        return
    assert "".join("".join(part.text.split()) for part in parts) == "".join(text.split())
    assert [replace(word, speaker=None) for part in parts for word in part.words] == list(whole.words)
    assert tuple(token for part in parts for token in part.spoken) == whole.spoken
    assert tuple(token for part in parts for token in part.tokens) == whole.tokens
    assert [sum(getattr(part, name) for part in parts) for name in ("prompt_tokens", "audio_tokens")] == [7, 9]
    assert (parts[0].start_ms, parts[-1].end_ms) == (whole.start_ms, whole.end_ms)
    assert all(part.text and part.start_ms < part.end_ms for part in parts)
    assert all({word.speaker for word in part.words} == {part.speaker} for part in parts)
    assert all(one.end_ms <= two.start_ms and one.speaker != two.speaker for one, two in pairwise(parts))


SEGMENT = Segment(0, 1000, "so", "English", (), 0.0, 0.0)


def client(error=None, block=0):
    """A client, and its recording, which fails at the block of that number or with the end."""
    recording = AsyncMock()
    recording.push.side_effect = [*[None] * (block - 1), error] if block else None
    recording.finish.side_effect = error
    recording.finish.return_value = Diarization((Turn(0, 0, 1000),), (np.ones(2, np.float32),))
    return SimpleNamespace(voice_model="", recording=lambda: nullcontext(recording)), recording


@pytest.mark.parametrize("block", [1, 100, 0])
@pytest.mark.parametrize("error", [SpeakersUnavailable("lost"), ValueError("a fault of the server")])
async def test_blocks_are_taken_after_a_failure_and_the_labels_raise_it(error, block):
    """Otherwise the text of the recording would wait for blocks that nobody takes."""
    speakers = RecordingSpeakers(client(error, block)[0], SpeakerCount(), None)
    running = asyncio.create_task(speakers.run())
    async with asyncio.timeout(10):
        for _ in range(200):  # more than may wait
            await speakers.push(np.zeros(32_000, np.float32))
        await speakers.end()
        with pytest.raises(type(error), match=str(error)):
            await speakers.mapped([SEGMENT])
    running.cancel()


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({}, SpeakerCount(1, MAX_SPEAKERS)),
        ({"num_speakers": 3}, SpeakerCount(3, 3)),
        ({"min_speakers": 2, "max_speakers": 3}, SpeakerCount(2, 3)),
        ({"min_speakers": 2}, SpeakerCount(2, MAX_SPEAKERS)),
    ],
)
async def test_as_many_people_are_looked_for_as_the_caller_says(options, count):
    speakers, recording = client()
    prepare = speaker_step(speakers, None, SimpleNamespace(comparable=lambda owner, model: []))
    begin = await prepare(TranscriptionRequest(speakers=True, **options), RunOptions())
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        step = begin(RecordingSignal(), group)
        await step.end()
        await step.mapped([SEGMENT])
    recording.finish.assert_awaited_once_with(count)
