"""The vocabulary is what is spoken: nothing else, and all of it."""

from asr_server.core.errors import InvalidInput
from asr_server.engine.catalog import Catalog
from asr_server.features.realtime import events
from asr_server.features.realtime.config import ServerDefaults
from asr_server.features.realtime.conversation import Conversation
from asr_server.live.machine.events import (
    Ending,
    Final,
    ResetDone,
    SessionError,
    TurnConfig,
    UtteranceEnded,
    UtteranceStarted,
)
from tools import realtime_events


def test_the_client_events_are_those_that_are_parsed():
    """One row for each parser."""
    assert list(realtime_events.CLIENT) == list(events.PARSERS)


def test_the_server_events_are_those_that_are_sent():
    """A conversation that meets everything says every word of the table, and no other."""
    config = ServerDefaults(Catalog("demo"), TurnConfig()).initial()
    talk = Conversation(config, "sess_1", 5)
    sent = [talk.created(), talk.updated(config), talk.error(InvalidInput("no"))]
    for message in (
        UtteranceStarted(1, 0),
        UtteranceEnded(1, 0, 100, Ending.PAUSE),
        Final(1, "a", "English", 0, 100, Ending.PAUSE),
        UtteranceEnded(2, 100, 100, Ending.FLUSH),
        Final(2, "b", "", 0, 0, Ending.FLUSH, error=SessionError("internal_error", "no", 2)),
        ResetDone(None),
    ):
        sent += talk.on_message(message)
    item_id = next(event["item_id"] for event in sent if "item_id" in event)
    sent += [talk.retrieved(item_id), talk.deleted(item_id)]
    assert {event["type"] for event in sent} == set(realtime_events.SERVER)
