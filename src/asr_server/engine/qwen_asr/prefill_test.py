"""The number of tokens that one step may prefill."""

import pytest

from asr_server.engine.qwen_asr.prefill import PrefillPolicy

# Decode step and prefilled tokens a second: two cores and the 0.6B; a small GPU; a large one.
MACHINES = {"cpu": (0.05, 350), "small gpu": (0.02, 5_000), "large gpu": (0.004, 60_000)}


def policy(step_s, tokens_per_s, lengths=(500,)):
    """Return a policy that has measured such a machine with prefills of these lengths."""
    made = PrefillPolicy()
    for number in range(30):
        made.note_step(step_s)
        length = lengths[number % len(lengths)]
        made.note_prefill(length, step_s + length / tokens_per_s)
    return made


@pytest.mark.parametrize("lengths", [(500,), (20, 70), (40, 40, 2000)])
@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_a_step_takes_the_time_that_it_may(machine, lengths):
    """The time is kept on every machine, whatever lengths were measured; the fixed cost of a pass comes on top."""
    _, tokens_per_s = machine
    assert policy(*machine, lengths).tokens(0.1) == pytest.approx(0.1 * tokens_per_s, rel=0.05)


def test_live_work_nearby_makes_steps_shorter():
    """On two cores two rows of 30 s (500 tokens) share a step, and while live work waits a part of one; on a GPU
    many."""
    slow, fast = policy(*MACHINES["cpu"]), policy(*MACHINES["large gpu"])
    assert slow.tokens(None) == pytest.approx(1050, abs=1)
    assert slow.tokens(0.25) == pytest.approx(87, abs=1)
    assert fast.tokens(0.1) > 10 * 500
    assert fast.tokens(None) == 8192


def test_something_is_always_prefilled():
    """The tokens are at least 32 before anything is measured, and where one token takes longer than the limit."""
    assert PrefillPolicy().tokens(None) == 32
    assert policy(1.0, 3).tokens(0.25) == 32


def test_a_machine_that_gets_slower_prefills_less():
    """Ten prefills later; and the first pass after a load, short and many times as slow, is soon outweighed."""
    changing = policy(*MACHINES["small gpu"])
    before = changing.tokens(0.25)
    for _ in range(10):
        changing.note_prefill(500, 0.02 + 500 / 1_250)
    assert changing.tokens(0.25) == pytest.approx(before / 4, rel=0.15)
    warmed = PrefillPolicy()
    warmed.note_prefill(30, 1.0)
    warmed.note_step(0.05)
    for _ in range(4):
        warmed.note_prefill(500, 0.05 + 500 / 350)
    assert warmed.tokens(0.25) > 55
