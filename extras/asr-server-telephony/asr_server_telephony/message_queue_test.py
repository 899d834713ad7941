"""Messages to a webhook of this machine, and a queue that is full."""

import json
import threading
from contextlib import contextmanager

import pytest
from loguru import logger

from asr_server.client.conftest import answering
from asr_server_telephony import message_queue
from asr_server_telephony.message_queue import GivenUp, LineWriter, MessageQueue, Webhook


def _text(number, *, final=True, call="c"):
    return {"type": "text", "call": call, "number": number, "final": final}


@contextmanager
def _receiver(*statuses):
    """A receiver that answers these statuses in turn, then 200. Yields its address and the bodies that it got."""
    with answering(b"", before=statuses) as (base, got):
        yield f"{base}/hook", got


def _numbers(bodies):
    return [json.loads(body)["number"] for body in bodies]


@pytest.fixture
def no_pauses(monkeypatch):
    monkeypatch.setattr(message_queue, "_PAUSES_S", (0.0,) * 4)


@pytest.fixture
def lost():
    """The fields of the log lines about messages that were given up."""
    lines = []
    sink = logger.add(lambda line: lines.append(line.record["extra"]), level="ERROR")
    yield lines
    logger.remove(sink)


def test_a_busy_webhook_gets_its_messages_in_order(no_pauses):
    with _receiver(503, 429) as (url, got):
        queue = MessageQueue("webhook", Webhook(url))
        for number in (1, 2, 3):
            queue.put(_text(number))
        queue.close()
    assert _numbers(got) == [1, 1, 1, 2, 3]


def test_half_a_surrogate_pair_of_a_peer_stops_no_message():
    with _receiver() as (url, got):
        queue = MessageQueue("webhook", Webhook(url))
        queue.put(_text(1) | {"content": "\ud800"})
        queue.put(_text(2))
        queue.close()
    assert _numbers(got) == [1, 2]


def test_a_final_that_is_refused_is_counted_and_logged(no_pauses, lost):
    """A message that is refused is not sent again, and no line is logged for text that may still change."""
    with _receiver(404, 404, 404) as (url, got):
        queue = MessageQueue("webhook", Webhook(url))
        for message in (_text(1), _text(2, final=False), _text(3), _text(4)):
            queue.put(message)
        queue.close()
    assert _numbers(got) == [1, 2, 3, 4]
    assert [(line["code"], line["call"], line["given_up"]) for line in lost] == [
        ("http_404", "c", 1),
        ("http_404", "c", 2),
    ]


def test_a_webhook_that_is_away_is_given_up_after_five_tries(no_pauses):
    with _receiver(*[500] * 5) as (url, got), pytest.raises(GivenUp):
        Webhook(url)(_text(1))
    assert _numbers(got) == [1] * 5


def test_a_full_queue_loses_no_final_in_silence(lost):
    """Text that may still change is left out earlier, and one call cannot fill the queue of all."""
    going, delivered = threading.Event(), []

    def deliver(message):
        going.wait()
        delivered.append((message["call"], message["number"]))

    queue = MessageQueue("webhook", deliver)
    for number in range(2 * message_queue.MOST_OF_CALL):
        queue.put(_text(number, call="loud"))
        queue.put(_text(number, call="partial", final=False))
    queue.put(_text(0, call="quiet"))
    going.set()
    queue.close()
    assert ("quiet", 0) in delivered
    kept = [call for call, _ in delivered]
    assert kept.count("loud") + len(lost) == 2 * message_queue.MOST_OF_CALL
    assert {line["code"] for line in lost} == {"queue_full"}
    assert kept.count("partial") <= kept.count("loud")


def test_what_waits_at_the_end_is_given_up(lost):
    going = threading.Event()
    queue = MessageQueue("webhook", lambda _: going.wait())
    for number in (1, 2, 3):
        queue.put(_text(number))
    queue.close(0.05)
    going.set()
    assert {line["code"] for line in lost} == {"closed"}
    assert len(lost) in {2, 3}


def test_a_reader_of_lines_that_has_gone_is_noticed():
    """The command then ends."""
    gone = threading.Event()

    class Closed:
        def write(self, _):
            raise BrokenPipeError

    with pytest.raises(GivenUp) as given_up:
        LineWriter(Closed(), gone.set)(_text(1))
    assert given_up.value.code == "output_closed"
    assert gone.is_set()
