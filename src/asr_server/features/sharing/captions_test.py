"""The captions of a session, and readers at different places of them."""

import asyncio
from itertools import pairwise

import pytest

from asr_server.core.conftest import raises
from asr_server.features.sharing.captions import Caption, Captions, EndReason, Reader, vtt


def caption(utterance, text, *, is_final=True):
    """The final of an utterance, or the committed words of an open one."""
    return Caption(utterance, text, utterance, utterance + 0.5, "English", is_final=is_final)


def joined(captions):
    """A new reader of these captions."""
    reader = Reader(captions, 0)
    captions.readers.add(reader)
    return reader


async def rest(reader):
    """The texts that it gets until the session ends, which it does now."""
    reader.end(EndReason.SESSION)
    return [caption.text async for caption in reader.captions()]


async def test_words_that_were_not_taken_are_left_out_where_newer_ones_begin_with_them():
    """Their final too takes their place."""
    captions = Captions()
    reader = joined(captions)
    for utterance, text in ((1, "turn"), (1, "turn on"), (1, "turn on."), (2, "the"), (2, "the light")):
        captions.put(caption(utterance, text, is_final=text.endswith(".")))
    assert await rest(reader) == ["turn on.", "the light"]


async def test_words_of_the_next_utterance_may_come_before_a_final():
    captions = Captions()
    captions.put(caption(2, "next", is_final=False))
    reader = joined(captions)
    taken = reader.captions()
    assert (await anext(taken)).text == "next"
    captions.put(caption(1, "first"))
    assert (await anext(taken)).text == "first"
    await taken.aclose()
    assert (await rest(reader), await rest(joined(captions))) == ([], ["next", "first"])


async def test_a_reader_who_was_away_for_too_long_is_told_that_something_is_missing():
    """One who joins late gets what is kept, and one who has the newest that was dropped misses nothing."""
    captions = Captions()
    for number in range(1, 403):
        captions.put(caption(number, "x"))
    assert captions.dropped == 2
    late, back, has_all = Reader(captions), Reader(captions, after=1), Reader(captions, after=2)
    assert [one.is_complete for one in (late, back, has_all)] == [False, False, True]
    assert [len(await rest(one)) for one in (late, back, has_all)] == [400, 400, 400]


async def test_a_reader_who_does_not_read_is_cut_when_a_final_is_dropped_that_it_lacks():
    """A slow reader is cut, as nothing waits for it besides what is kept for all."""
    captions = Captions()
    taken = joined(captions).captions()
    captions.put(caption(1, "x"))
    assert (await anext(taken)).number == 1
    for number in range(2, 403):
        captions.put(caption(number, "x"))
    with raises("slow_reader"):
        await anext(taken)


@pytest.mark.parametrize(
    ("reason", "read"), [(EndReason.REVOKED, []), (EndReason.EXPIRED, []), (EndReason.SESSION, ["one"])]
)
async def test_a_reader_whose_link_is_no_longer_valid_gets_nothing_that_waits(reason, read):
    """At the end of the session the last words are still sent."""
    captions = Captions()
    reader = joined(captions)
    captions.put(caption(1, "one"))
    reader.end(reason)
    assert await rest(reader) == read


async def test_long_texts_count_by_their_characters():
    """The characters that are kept have a bound, or a few hundred finals could hold any number of them."""
    captions = Captions()
    for number in range(1, 31):
        captions.put(caption(number, 10_000 * "x"))
    assert len(captions.finals) == 10


async def test_readers_are_woken_a_few_in_each_round_of_the_loop():
    captions = Captions()
    taken = [asyncio.ensure_future(anext(joined(captions).captions())) for _ in range(200)]
    await asyncio.sleep(0)
    captions.put(caption(1, "turn on."))
    rounds = [0]
    while rounds[-1] < len(taken):
        await asyncio.sleep(0)
        rounds.append(sum(task.done() for task in taken))
    assert 0 < max(after - before for before, after in pairwise(rounds)) < 20


def test_cues_stay_within_their_utterance():
    """Each final is divided by itself, so that a file of before is the beginning of the next one."""
    finals = [caption(1, "Turn on the light."), caption(3, "And the <fan> & the heater, which is next to it.")]
    file = vtt(finals)
    assert file.startswith(vtt(finals[:1]))
    assert "00:00:01.000 --> 00:00:01.500" in file
    assert "&lt;fan&gt; &amp;" in file
