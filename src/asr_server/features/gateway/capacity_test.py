"""What a gateway knows of the capacity of its workers."""

from dataclasses import asdict, replace

from asr_server.features.gateway.capacity import KnownCapacity
from asr_server.ops.schemas import CapacityBody
from asr_server.schedule.capacity import EngineWork, StreamCapacity, StreamRules

RULES = StreamRules(max_sessions=20, first_guess_speed=4.0)
GUESS = StreamCapacity(EngineWork(), StreamRules()).free()
MEASURED = replace(
    GUESS,
    free_streams=9,
    streams=12,
    streams_measured=True,
    stream_cost=0.05,
    audio_s_per_s=30.0,
    free_audio_s_per_s=10.0,
    audio_measured=True,
)


def _health(capacity, sessions):
    return {"capacity": asdict(capacity), "live": {"sessions": sessions}}


def test_what_a_worker_measured_stays_known_without_it():
    """All of it is free then. A new worker has only a guess, so its sessions are set against what is known."""
    known = KnownCapacity(RULES)
    assert known.without_worker()["streams_measured"] is False
    assert known.of_worker(_health(MEASURED, 3)) == asdict(MEASURED)
    asleep = known.without_worker()
    assert (asleep["free_streams"], asleep["free_audio_s_per_s"], asleep["streams_measured"]) == (12, 30.0, True)
    again = known.of_worker(_health(GUESS, 5))
    assert (again["streams"], again["free_streams"], again["free_audio_s_per_s"]) == (12, 7, 30.0)
    CapacityBody(**again)


def test_the_limit_of_sessions_is_the_gateways():
    """A worker has none."""
    known = KnownCapacity(RULES)
    found = known.of_worker(_health(replace(MEASURED, streams=500, free_streams=495), 5))
    assert (found["streams"], found["free_streams"]) == (20, 15)
    assert known.without_worker()["free_streams"] == 20


def test_what_a_worker_has_no_room_for_is_not_free():
    """It may have fewer free than its streams less its sessions: audio waits."""
    assert KnownCapacity(RULES).of_worker(_health(replace(MEASURED, free_streams=1), 3))["free_streams"] == 1


def test_sessions_that_take_no_stream_take_places_of_the_gateway():
    """Their sockets are open without audio."""
    known = KnownCapacity(RULES)
    found = [known.of_worker(_health(MEASURED, sessions))["free_streams"] for sessions in (10, 15)]
    assert found == [9, 5]
