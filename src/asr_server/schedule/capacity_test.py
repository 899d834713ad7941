"""Free streams and recordings, by scripted work and a scripted clock."""

import math
import random

import pytest

from asr_server.schedule.capacity import (
    FIRST_GUESS_SPEED,
    RECORDINGS_SHARE,
    EngineWork,
    StepTime,
    StreamCapacity,
    StreamRules,
)
from asr_server.schedule.job import Job, Priority

EVERY_S = 0.5


class Machine:
    """An engine, and sessions that speak on it. `now_s` is its clock.

    A second of speech costs `cost_s` of the engine; while more than it has is asked for, partials come later, and live
    work takes what there is.
    """

    def __init__(self, slots=0, **rules):
        self.now_s = 1_000.0
        self.work = EngineWork()
        rules = StreamRules(EVERY_S, rules.pop("max_sessions", 10_000), **rules)
        self.capacity = StreamCapacity(self.work, rules, slots=lambda: slots, clock=lambda: self.now_s)

    def run(self, seconds, sessions, *, speak=1.0, cost_s=0.039, recordings=0.0, audio_s_per_s=0.0, rows=0.2):
        """`speak`: the share of the sessions that speaks in each second. `recordings`: their share of the engine."""
        for _ in range(seconds):
            self.now_s += 1.0
            speech_s = sessions * speak
            asked_s = speech_s * cost_s
            late = max(1.0, asked_s / (1 - recordings))
            partials = speech_s / EVERY_S / late
            self.work.live_s += asked_s / late
            self.work.recordings_s += recordings
            self.work.speech_s += speech_s
            self.work.first_speech_s = min(self.work.first_speech_s, self.now_s if speech_s else math.inf)
            self.work.row_s += speech_s * min(1.0, rows * late)
            self.work.partials += partials
            self.work.partials_s += partials * EVERY_S * (late if late > 1 else 0.1)
            self.audio_s = getattr(self, "audio_s", 0.0) + audio_s_per_s
            self.capacity.update(sessions, self.audio_s)

    def free(self, room=None):
        return self.capacity.free(room)


@pytest.mark.parametrize("sessions", [1, 4, 16, 19])
def test_a_steady_load_leaves_what_recordings_do_not_keep(sessions):
    """Twenty people who speak all the time, at 0.039 engine seconds a second, take four fifths of the engine."""
    machine = Machine()
    machine.run(120, sessions)
    found = machine.free()
    assert (found.streams_measured, found.streams, found.free_streams) == (True, 20, 20 - sessions)
    assert found.stream_cost == pytest.approx(0.039)


def test_an_engine_that_is_behind_has_no_free_stream():
    """Sessions ask less often when answers are late, so each takes less of the engine; it is full nevertheless."""
    machine = Machine()
    machine.run(120, 50)
    assert machine.work.live_s / machine.work.speech_s < 0.021
    assert (machine.free().streams, machine.free().free_streams) == (13, 0)


def test_recordings_beside_live_work_take_no_stream_away():
    """Recordings use what is left, and give way to live work up to their share."""
    alone, beside = Machine(), Machine()
    alone.run(60, 10)
    beside.run(60, 10, recordings=0.6)
    assert beside.free().streams == alone.free().streams == 20


def test_silence_forgets_nothing_and_frees_nothing_at_once():
    """Ten minutes in which nobody says a word: they may all begin to speak, and cost then what they cost before. So at
    most four times as many get in as may speak at once."""
    machine = Machine()
    machine.run(120, 10)
    machine.run(10, 10, speak=0.0)
    assert machine.free().free_streams <= 14
    machine.run(600, 10, speak=0.0)
    assert machine.free().stream_cost == pytest.approx(0.039)
    assert 20 < machine.free().streams <= 80


def test_people_who_speak_half_of_the_time_share_an_engine():
    """As many sessions fit as rarely have more than 20 speakers at once: checked by drawing who speaks."""
    machine, draw = Machine(), random.Random(1)
    machine.run(3_000, 20, speak=0.5)
    streams = machine.free().streams
    assert 25 < streams < 40
    over = sum(sum(draw.random() < 0.5 for _ in range(streams)) > 20 for _ in range(2_000))
    more = sum(sum(draw.random() < 0.5 for _ in range(streams + 6)) > 20 for _ in range(2_000))
    assert over / 2_000 < 0.05 < more / 2_000


def test_a_burst_counts_before_it_speaks():
    """Sessions that were just opened are no longer free, though they have cost nothing so far."""
    machine = Machine()
    machine.run(60, 10)
    machine.capacity.update(18)
    assert machine.free().free_streams == 2
    machine.capacity.update(40)
    assert machine.free().free_streams == 0


def test_one_slow_second_changes_little():
    """The number does not flap: a hiccup of the engine is one second of thirty."""
    machine = Machine()
    machine.run(120, 15)
    machine.run(1, 15, cost_s=0.1)
    assert machine.free().free_streams >= 3
    machine.run(120, 15, cost_s=0.1)
    assert machine.free().free_streams == 0


def test_nothing_is_measured_before_somebody_has_spoken():
    """The guess is by the speed of recordings, which is a guess itself before there are any."""
    machine = Machine()
    guess = machine.free()
    assert (guess.streams_measured, guess.audio_measured, guess.streams) == (False, False, 2)
    assert guess.audio_s_per_s == FIRST_GUESS_SPEED
    machine.run(30, 0, recordings=0.5, audio_s_per_s=50.0)
    assert machine.free().streams_measured is False
    assert machine.free().streams == 19
    machine.run(5, 1)
    assert machine.free().streams_measured is False
    machine.run(6, 1)
    assert machine.free().streams_measured is True


def test_sessions_that_come_together_from_elsewhere_are_not_measured_at_once():
    """A worker that takes those of one that crashed must not refuse the last of them by what the first cost."""
    machine = Machine()
    machine.run(2, 40, cost_s=2.0)
    assert machine.free().streams_measured is False
    machine.run(5, 40, cost_s=2.0)
    assert machine.free().streams_measured is True


def test_two_fit_any_machine():
    """One speaker already takes all of the engine; a second waits about twice as long, and is let in."""
    machine = Machine()
    machine.run(60, 1, cost_s=2.0)
    assert (machine.free().streams, machine.free().free_streams) == (2, 1)
    machine.run(60, 2, cost_s=2.0)
    assert machine.free().free_streams == 0


def test_limits_bound_the_number():
    """MAX_LIVE_SESSIONS, the room that waiting audio leaves, and the rows of the batch."""
    machine = Machine(max_sessions=12)
    machine.run(60, 10)
    assert machine.free().streams == 12
    assert (machine.free(room=1).free_streams, machine.free(room=0).free_streams) == (1, 0)
    few = Machine(slots=2)
    few.run(60, 5, rows=0.25)
    assert few.free().streams == 8


def test_an_engine_elsewhere_is_measured_by_its_rows():
    """The engine's steps are spent waiting, so they say nothing; a session that speaks has a quarter of its 8 rows."""
    machine = Machine(slots=8, steps_are_work=False)
    machine.run(60, 5, cost_s=0.19, rows=0.25)
    assert machine.free().streams == 32


def test_recordings_have_what_live_work_leaves_and_their_share_at_least():
    """The engine does 60 s in a second: 36 while live work takes two fifths, and half of that is in use."""
    machine = Machine()
    machine.run(300, 10, cost_s=0.04, recordings=0.3, audio_s_per_s=18.0)
    found = machine.free()
    assert found.audio_measured
    assert found.audio_s_per_s == pytest.approx(36.0, rel=0.03)
    assert found.free_audio_s_per_s == pytest.approx(18.0, rel=0.03)
    machine.run(300, 25, recordings=0.0)
    assert machine.free().audio_s_per_s == pytest.approx(60 * RECORDINGS_SHARE, rel=0.03)


def test_a_long_time_without_a_look_is_an_average():
    """However rarely the figures are read."""
    often, rarely = Machine(), Machine()
    often.run(600, 10)
    for name in ("first_speech_s", "live_s", "speech_s", "row_s", "partials", "partials_s"):
        setattr(rarely.work, name, getattr(often.work, name))
    rarely.now_s = often.now_s
    rarely.capacity.update(10)
    assert rarely.free().streams == often.free().streams


def _job(priority, session, cost_s, began_s=0.0, ended_s=1.0):
    job = Job(None, priority, cost_s=cost_s, session=session)
    job.queued_s, job.started_s, job.ended_s = began_s, began_s + 0.2, ended_s
    return job


def test_speech_that_is_asked_for_again_counts_once():
    """Partials and the final have the same audio; a second utterance, another session and the times of words do not
    disturb that. What a session sends faster than it is spoken is no live work."""
    work = EngineWork()
    for seconds in (0.5, 1.0, 2.0):
        work.answered(_job(Priority.PARTIAL, "a:0", seconds))
        work.answered(_job(Priority.PARTIAL, "b:0", seconds))
    work.answered(_job(Priority.FINAL, "a:0", 2.5))
    work.answered(_job(Priority.FINAL, "", 2.5))
    work.answered(_job(Priority.PARTIAL, "a:40000", 1.0))
    work.answered(_job(Priority.INTERACTIVE, "c:0", 20.0))
    assert work.speech_s == pytest.approx(2.5 + 2.0 + 1.0)
    assert (work.partials, work.partials_s) == (7, pytest.approx(7.0))
    assert work.row_s == pytest.approx(9 * 0.8)


def test_what_is_kept_of_utterances_is_bounded():
    """However many there are."""
    work = EngineWork()
    for number in range(20_000):
        work.answered(_job(Priority.FINAL, f"s:{number}", 1.0))
    assert len(work._lengths) <= 8_192
    assert work.speech_s == 20_000


def test_steps_are_divided_between_live_work_and_recordings():
    """A step with a recording in the batch counts for the speed of recordings too."""
    times = iter((0.0, 1.0, 3.0))
    live, recording = Job(None, Priority.PARTIAL), Job(None, Priority.BULK)
    step = StepTime([live, recording], lambda: next(times))
    step.on_outcome(live)
    step.end()
    work = EngineWork()
    work.stepped(step, 2.5)
    assert (work.live_s, work.recordings_s, work.with_recordings_s) == (1.0, 2.0, 2.5)
    alone = iter((0.0, 1.0))
    step = StepTime([live], lambda: next(alone))
    step.end()
    work.stepped(step, 0.9)
    assert (work.live_s, work.recordings_s, work.with_recordings_s) == (2.0, 2.0, 2.5)
    assert math.isfinite(work.live_s)


def test_an_outcome_costs_the_same_however_many_rows_there_are(monkeypatch):
    """The rows that had begun are counted once in a step, and not for each of its outcomes."""
    asked = []
    monkeypatch.setattr(Priority, "is_live", property(lambda priority: asked.append(priority) or True))
    jobs = [Job(None, Priority.PARTIAL) for _ in range(64)]
    for job in jobs:
        job.begun = True
    step = StepTime(jobs, lambda: 0.0)
    for job in jobs:
        step.on_outcome(job)
    step.end()
    assert len(asked) <= 2 * len(jobs)
