"""Which replica gets a row."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from asr_server.cluster.messages import ReplicaStats, RowCall
from asr_server.cluster.routing import Routing
from asr_server.engine.protocol import AlignItem, Utterance

_numbers = itertools.count(1)


def _row(stream="", seconds=1):
    session = f"{stream}:{next(_numbers)}" if stream else None
    return RowCall(next(_numbers), Utterance(np.zeros(16_000 * seconds, np.float32), session=session), "", False, "", 0)


def _stats(streams, waiting_s=0.0, **sessions):
    return ReplicaStats(replace(ReplicaStats().capacity, streams=streams), sessions, waiting_s)


def _routing(**streams):
    routing = Routing()
    routing.update({name: _stats(count) for name, count in streams.items()})
    return routing


def _send(routing, row, names="abc", ring="abc"):
    (name, *_) = ranked = routing.rank(row, names, list(ring))
    routing.sent(row, name)
    return ranked


def test_rows_of_a_recording_go_where_the_least_audio_is_under_way():
    """What this app has sent counts at once, what others have sent once it is published."""
    routing = _routing(a=0, b=0)
    long, short = _row(seconds=30), _row(seconds=10)
    assert _send(routing, long, "ab")[0] == "a"
    assert [_send(routing, row, "ab")[0] for row in (short, _row(seconds=10))] == ["b", "b"]
    routing.done(short)
    assert _send(routing, _row(seconds=1), "ab")[0] == "b"
    routing.update({"a": _stats(0), "b": _stats(0, waiting_s=100)})
    assert _send(routing, _row(), "ab")[0] == "a"


def test_a_session_stays_on_its_replica():
    """Whatever the others have free; each utterance has a key of its own."""
    routing = _routing(a=1, b=5, c=2)
    assert _send(routing, _row("s"))[0] == "b"
    routing.update({"a": _stats(90), "b": _stats(0), "c": _stats(90)})
    assert {_send(routing, _row("s"))[0] for _ in range(5)} == {"b"}


def test_new_sessions_go_where_most_streams_are_free():
    """Those of this app are counted at once, or all of them would go to one replica; others' as published."""
    routing = _routing(a=4, b=2)
    assert [_send(routing, _row(f"s{n}"), "ab")[0] for n in range(6)] == ["a", "a", "b", "a", "b", "a"]
    routing.update({"a": _stats(14, other=11), "b": _stats(5)})
    assert _send(routing, _row("t"), "ab")[0] == "b"


def test_a_session_that_has_ended_leaves_its_place():
    """The others stay where they are."""
    routing = _routing(a=3, b=2)
    assert [_send(routing, _row(stream), "ab")[0] for stream in "stu"] == ["a", "b", "a"]
    assert routing.keep_streams({"t", "u"}) == ["s"]
    assert [_send(routing, _row(stream), "ab")[0] for stream in "tv"] == ["b", "a"]


def test_a_replica_that_has_measured_nothing_counts_as_the_others():
    """Its own guess may be a tenth of what it can take."""
    routing, measured = Routing(), replace(ReplicaStats().capacity, streams=40, streams_measured=True)
    routing.update({"a": ReplicaStats(measured, {"other": 35}), "b": _stats(2)})
    assert {_send(routing, _row(f"s{n}"), "ab")[0] for n in range(10)} == {"b"}


def test_a_session_whose_replica_is_gone_goes_by_the_hash():
    """To the first of the ring that is there, with two more to fall back on, and stays there then."""
    routing = _routing(a=9, b=0, c=0, d=0, e=0)
    assert _send(routing, _row("s"), "abcde", "edcba")[0] == "a"
    routing.update({name: _stats(9 if name == "b" else 0) for name in "bcde"})
    assert _send(routing, _row("s"), "bcde", "edc") == ["e", "d", "c"]
    routing.update({name: _stats(9 if name == "a" else 0) for name in "abcde"})
    assert _send(routing, _row("s"), "abcde", "abc")[:2] == ["e", "a"]


def test_where_a_row_broke_off_is_avoided_until_it_publishes():
    """A process that ended is listed for some time. Where no other is left, it is still asked."""
    routing = _routing(a=9, b=1)
    row = _row("s")
    assert _send(routing, row, "ab")[0] == "a"
    routing.broke_off(row)
    assert _send(routing, _row("s"), "ab", "ab")[0] == "b"
    assert _send(routing, _row("t"), "ab", "ab")[0] == "b"
    assert routing.rank(_row(), "a", []) == ["a"]
    routing.update({"a": _stats(8), "b": _stats(1)})
    assert _send(routing, _row("u"), "ab", "ab")[0] == "a"


@pytest.mark.parametrize("ring", [[], ["b"]])
def test_replicas_that_are_not_known_yet_can_be_chosen(ring):
    """The router may know a replica a moment earlier."""
    assert Routing().rank(_row(), ["b"], []) == ["b"]
    assert Routing().rank(_row("s"), ["b"], ring) == ["b"]


def test_an_alignment_is_of_no_session():
    """It goes where the least audio is under way."""
    call = RowCall(1, AlignItem(np.zeros(10, np.float32), "hello", "English"), "", False, "", 0)
    assert call.stream == ""
