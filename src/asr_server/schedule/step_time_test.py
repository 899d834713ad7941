"""The time of steps, divided between live work and recordings."""

from asr_server.schedule.job import Job, Priority
from asr_server.schedule.thread import StepTime


def test_steps_are_divided_between_live_work_and_recordings():
    """The time until the outcome of a new row is that row's own."""
    times = iter((0.0, 1.0, 3.0))
    live, recording = Job(None, Priority.PARTIAL), Job(None, Priority.BULK)
    step = StepTime([live, recording], lambda: next(times))
    step.on_outcome(live)
    live.begun = True
    step.end()
    assert (step.live_s, step.recordings_s, step.has_recordings) == (1.0, 2.0, True)
    live.begun, alone = False, iter((0.0, 1.0))
    step = StepTime([live], lambda: next(alone))
    step.end()
    assert (step.live_s, step.recordings_s, step.has_recordings) == (1.0, 0.0, False)
