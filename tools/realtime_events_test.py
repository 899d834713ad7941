"""The vocabulary that the documentation lists is the one that is parsed."""

from asr_server.features.realtime import events
from tools import realtime_events


def test_the_client_events_are_those_that_are_parsed():
    assert list(realtime_events.CLIENT) == list(events.PARSERS)
