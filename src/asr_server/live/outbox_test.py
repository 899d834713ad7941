"""The messages that wait for a live client."""

from dataclasses import replace
from types import SimpleNamespace

from asr_server.core.conftest import raises
from asr_server.core.errors import InvalidInput
from asr_server.live.machine.events import Ending, Final, Partial, UtteranceStarted
from asr_server.live.outbox import Outbox, Outgoing


def _partial(utterance, text):
    return Outgoing(Partial(utterance, "", text, "", 0, 0))


def _final(utterance, text="x"):
    return Outgoing(Final(utterance, text, "", 0, 0, Ending.PAUSE))


async def _read(outbox):
    return [outgoing.message async for outgoing in outbox.messages()]


async def test_a_newer_partial_takes_the_place_of_one_that_was_not_sent():
    """The newest of an utterance goes out. The start of an utterance, finals and other utterances stay."""
    outbox, started = Outbox(), UtteranceStarted(1, 0)
    partials = (_partial(1, "a"), _partial(1, "a b"), _final(1), _partial(2, "c"), _partial(2, "c d"))
    for outgoing in (Outgoing(started), *partials):
        outbox.put(outgoing)
    outbox.close()
    first, *others = await _read(outbox)
    assert (first, [message.text for message in others]) == (started, ["a b", "x", "c d"])


async def test_details_of_a_text_take_room_until_they_are_taken():
    outbox = Outbox()
    outbox.put(_final(1))
    alone = outbox.waiting_bytes
    outbox.put(replace(_final(2), details=SimpleNamespace(size_bytes=5_000)))
    assert outbox.waiting_bytes == 2 * alone + 5_000
    outbox.close()
    await _read(outbox)
    assert outbox.waiting_bytes == 0


async def test_a_client_that_never_reads_is_given_up():
    """Beyond the limit nothing is held any more, and the reader ends with the error."""
    outbox = Outbox(limit_bytes=10_000)
    for number in range(1_000):
        outbox.put(_final(number, "some words"))
        assert outbox.waiting_bytes <= 10_000 + 1_000
    with raises("slow_reader"):
        await _read(outbox)


async def test_what_waits_goes_out_before_the_error_that_closed_the_box():
    """A final is not lost to the end of the connection."""
    outbox = Outbox()
    outbox.put(_final(1))
    outbox.close(InvalidInput("elsewhere", code="session_taken"))
    outbox.put(_final(2))
    reader = outbox.messages()
    assert (await anext(reader)).message.utterance == 1
    with raises("session_taken"):
        await anext(reader)


async def test_all_finals_that_are_kept_are_given_out_however_long():
    """A client that comes back without any is not taken for one that does not read."""
    outbox = Outbox([_final(number, "word " * 200) for number in range(1, 257)], limit_bytes=10_000)
    outbox.put(_final(257))
    outbox.close()
    assert [message.utterance for message in await _read(outbox)] == list(range(1, 258))
