"""Weights that lie in memory, and those that are mapped from their files."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from asr_server import demo
from asr_server.engine import memory
from asr_server.engine.feature import Plan
from asr_server.engine.memory import PrefillPolicy
from asr_server.engine.qwen_asr import loading
from asr_server.engine.torch.memory import addresses

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(("dtype", "mapped"), [(torch.float32, False), (torch.float16, True)])
def test_weights_in_their_own_format_are_mapped_and_counted(dtype, mapped):
    """The kernel calls pages of a mapped file free, so the plan has to leave room for them; converted ones are ours."""
    parts = loading.load(demo.checkpoint_path(), device="cpu", dtype=dtype)
    counted = memory.mapped_bytes(addresses(parts.tower, parts.text, parts.head))
    size = (demo.checkpoint_path() / "model.safetensors").stat().st_size
    assert counted == (pytest.approx(size, rel=0.1) if mapped else 0)


MIB = 1024 * 1024
# Keys and values of a token of the released models, in 16 bits.
RELEASED = 112 * 1024

# Decode step and prefilled tokens a second: two cores and the 0.6B; a small GPU; a large one.
MACHINES = {"cpu": (0.05, 350), "small gpu": (0.02, 5_000), "large gpu": (0.004, 60_000)}


def _capacity(free_bytes, device, rows=64, budget_mb=0, **more):
    plan = Plan("qwen", "demo", device, "auto", rows, budget_mb, ())
    return memory.capacity(plan, free_bytes=free_bytes, token_bytes=RELEASED, **more)


@given(st.integers(0, 200_000), st.integers(0, 50_000), st.integers(1, 256), st.sampled_from(["cpu", "cuda"]))
def test_the_plan_stays_within_its_budget(free_mb, budget_mb, max_batch, device):
    """Rows and sessions together never exceed the budget, but for the one row that must be."""
    free = free_mb * MIB
    found = _capacity(free, device, max_batch, budget_mb)
    assert 1 <= found.rows <= max_batch
    if found.rows > 1:
        assert found.rows_bytes + found.prefix_cache_bytes <= (budget_mb * MIB or free * 0.6)


def test_the_aligners_memory_is_left_out_of_the_plan():
    """On a GPU; on a CPU it is part of what all others have, unless that is too little."""
    free, aligner = 6 * 1024 * MIB, 2 * 1024 * MIB
    for device, most in (("cuda", 0.6 * (free - aligner)), ("cpu", 0.25 * free)):
        found = _capacity(free, device, 256, reserved_bytes=aligner)
        assert found.rows_bytes + found.prefix_cache_bytes == pytest.approx(most, abs=1)
    short = _capacity(aligner + 100 * MIB, "cpu", 256, reserved_bytes=aligner)
    assert short.rows_bytes + short.prefix_cache_bytes == 100 * MIB


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
    assert policy(*machine, lengths).tokens(0.05) == pytest.approx(max(32, 0.05 * tokens_per_s), rel=0.05)


def test_live_work_nearby_makes_steps_shorter():
    """Two rows of 30 s share a step on two cores, and while live work waits a part of one; on a GPU many do."""
    slow, fast = policy(*MACHINES["cpu"]), policy(*MACHINES["large gpu"])
    assert slow.tokens(None) == pytest.approx(1050, abs=1)
    assert slow.tokens(0.25) == pytest.approx(87, abs=1)
    assert fast.tokens(0.1) > 8 * 500
    assert fast.tokens(None) == 4096
    assert PrefillPolicy().tokens(None) == 32  # nothing is measured yet
    assert policy(1.0, 3).tokens(0.25) == 32


def test_a_machine_that_gets_slower_prefills_less():
    """Ten prefills later."""
    changing = policy(*MACHINES["small gpu"])
    before = changing.tokens(0.25)
    for _ in range(10):
        changing.note_prefill(500, 0.02 + 500 / 1_250)
    assert changing.tokens(0.25) == pytest.approx(before / 4, rel=0.15)
