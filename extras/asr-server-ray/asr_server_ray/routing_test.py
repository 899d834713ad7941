"""Which replica gets a row."""

import itertools
from dataclasses import replace

import numpy as np

from asr_server.engine.protocol import AlignItem, Utterance
from asr_server_ray.messages import Address, ReplicaStats, RowCall
from asr_server_ray.routing import Routing

_numbers = itertools.count(1)


def _row(stream="", seconds=1):
    session = f"{stream}:{next(_numbers)}" if stream else None
    return RowCall(next(_numbers), Utterance(np.zeros(16_000 * seconds, np.float32), session=session), "", False, "", 0)


def _stats(streams, name, waiting_s=0.0, **sessions):
    """Of a replica that listens at a host of its name."""
    capacity = replace(ReplicaStats().capacity, streams=streams)
    return ReplicaStats(capacity, sessions, waiting_s, address=Address(name, 1, b""))


def _publish(routing, **streams):
    routing.update({name: _stats(count, name) for name, count in streams.items()})


def _routing(**streams):
    routing = Routing()
    _publish(routing, **streams)
    return routing


def _send(routing, row):
    return routing.choose(row).host


def test_rows_of_a_recording_go_where_the_least_audio_is_under_way():
    """What this app has sent counts at once, what others have sent once it is published."""
    routing = _routing(a=0, b=0)
    long, short = _row(seconds=30), _row(seconds=10)
    assert _send(routing, long) == "a"
    assert [_send(routing, row) for row in (short, _row(seconds=10))] == ["b", "b"]
    routing.done(short)
    assert _send(routing, _row(seconds=1)) == "b"
    routing.update({"a": _stats(0, "a"), "b": _stats(0, "b", waiting_s=100)})
    assert _send(routing, _row()) == "a"


def test_a_session_stays_on_its_replica():
    """Whatever the others have free; each utterance has a key of its own."""
    routing = _routing(a=1, b=5, c=2)
    assert _send(routing, _row("s")) == "b"
    _publish(routing, a=90, b=0, c=90)
    assert {_send(routing, _row("s")) for _ in range(5)} == {"b"}


def test_new_sessions_go_where_most_streams_are_free():
    """Those of this app are counted at once, or all of them would go to one replica; others' as published."""
    routing = _routing(a=4, b=2)
    assert [_send(routing, _row(f"s{n}")) for n in range(6)] == ["a", "a", "b", "a", "b", "a"]
    routing.update({"a": _stats(14, "a", other=11), "b": _stats(5, "b")})
    assert _send(routing, _row("t")) == "b"


def test_a_session_that_has_ended_leaves_its_place():
    """The others stay where they are."""
    routing = _routing(a=3, b=2)
    assert [_send(routing, _row(stream)) for stream in "stu"] == ["a", "b", "a"]
    assert routing.keep_streams({"t", "u"}) == ["s"]
    assert [_send(routing, _row(stream)) for stream in "tv"] == ["b", "a"]


def test_a_replica_that_has_measured_nothing_counts_as_the_others():
    """Its own guess may be a tenth of what it can take."""
    routing, measured = Routing(), replace(ReplicaStats().capacity, streams=40, streams_measured=True)
    routing.update({"a": replace(_stats(0, "a", other=35), capacity=measured), "b": _stats(2, "b")})
    assert {_send(routing, _row(f"s{n}")) for n in range(10)} == {"b"}


def test_sessions_whose_replica_is_gone_are_divided_as_every_app_does():
    """They stay where they went, also when others come, and if that goes too the rest stay where they are."""
    streams = [f"s{n}" for n in range(60)]
    apps = [_routing(a=90), _routing(a=90)]
    for routing in apps:
        assert {_send(routing, _row(stream)) for stream in streams} == {"a"}
        _publish(routing, b=0, c=90, d=0)
    first, other = ([_send(routing, _row(stream)) for stream in streams] for routing in apps)
    assert first == other
    assert all(first.count(name) > 8 for name in "bcd")
    _publish(apps[0], a=90, b=0, c=90, d=0)
    assert [_send(apps[0], _row(stream)) for stream in streams] == first
    _publish(apps[0], c=90, d=0)
    after = [_send(apps[0], _row(stream)) for stream in streams]
    assert all(now == before for now, before in zip(after, first, strict=True) if before != "b")


def test_where_a_row_broke_off_is_avoided_until_it_publishes():
    """A process that ended is listed for some time. Where no other is left, it is still asked."""
    routing = _routing(a=9, b=1)
    row = _row("s")
    assert _send(routing, row) == "a"
    routing.broke_off(row)
    assert _send(routing, _row("s")) == "b"
    assert _send(routing, _row("t")) == "b"
    _publish(routing, a=9)
    assert _send(routing, _row()) == "a"
    _publish(routing, a=8, b=1)
    assert _send(routing, _row("u")) == "a"


def test_a_replica_is_chosen_once_its_address_is_published():
    """Ray Serve may know it a moment earlier."""
    routing = Routing()
    assert routing.choose(_row()) is None
    routing.update({"a": replace(_stats(5, "a"), address=None)})
    assert routing.choose(_row("s")) is None
    _publish(routing, a=0)
    assert _send(routing, _row("s")) == "a"


def test_an_alignment_is_of_no_session():
    """It goes where the least audio is under way."""
    call = RowCall(1, AlignItem(np.zeros(10, np.float32), "hello", "English"), "", False, "", 0)
    assert call.stream == ""
