"""Planning of rows and bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr_server.engine.qwen_asr import capacity

MIB = 1024 * 1024
RELEASED = capacity.token_bytes(layers=28, kv_heads=8, head_dim=128, item_bytes=2)


def test_a_token_of_the_released_models_takes_112_kib():
    """The figure that is published for both sizes."""
    assert RELEASED == 112 * 1024


@given(st.integers(0, 200_000), st.integers(0, 50_000), st.integers(1, 256), st.sampled_from(["cpu", "cuda"]))
def test_the_plan_stays_within_its_budget(free_mb, budget_mb, max_batch, device):
    """Rows and sessions together never exceed the budget, but for the one row that must be."""
    free = free_mb * MIB
    limits = capacity.Limits(max_batch, budget_mb)
    plan = capacity.plan(limits, free_bytes=free, token_bytes=RELEASED, device=device)
    assert 1 <= plan.rows <= max_batch
    budget = budget_mb * MIB or free * 0.6
    if plan.rows > 1:
        assert plan.rows_bytes + plan.prefix_cache_bytes <= budget


def test_a_large_gpu_holds_the_whole_batch_and_a_small_one_less():
    """The number of rows follows the memory."""
    rows = [
        capacity.plan(capacity.Limits(64), free_bytes=gb * 1024 * MIB, token_bytes=RELEASED, device="cuda").rows
        for gb in (1, 8, 80)
    ]
    assert rows[0] < rows[1] < rows[2] == 64


def test_the_aligners_memory_is_left_out_of_the_plan():
    """On a GPU of 8 GiB rows and sessions leave its bytes free, and activations their share; on a CPU it is part of
    what all others have, unless that is too little."""
    free, aligner = 6 * 1024 * MIB, 2 * 1024 * MIB
    for device, most in (("cuda", 0.6 * (free - aligner)), ("cpu", 0.25 * free)):
        limits = capacity.Limits(256, reserved_bytes=aligner)
        plan = capacity.plan(limits, free_bytes=free, token_bytes=RELEASED, device=device)
        assert plan.rows_bytes + plan.prefix_cache_bytes == pytest.approx(most, abs=1)
    short = capacity.plan(limits, free_bytes=aligner + 100 * MIB, token_bytes=RELEASED, device="cpu")
    assert short.rows_bytes + short.prefix_cache_bytes == 100 * MIB


def test_the_limit_of_rows_halves_and_recovers():
    """After a shortage at eight rows four decode at once, and eight again after many passes."""
    limit = capacity.RowLimit(8)
    limit.ran_out(8)
    assert limit.rows == 4
    for _ in range(500):
        limit.succeeded()
    assert limit.rows == 8


@given(st.integers(1, 64), st.lists(st.one_of(st.none(), st.integers(1, 64)), max_size=200))
def test_the_limit_of_rows_stays_between_one_and_the_plan(planned, events):
    """A failure never raises it, whatever happens."""
    limit = capacity.RowLimit(planned)
    for rows in events:
        before = limit.rows
        if rows is None:
            limit.succeeded()
            assert before <= limit.rows <= 2 * before
        else:
            limit.ran_out(min(rows, before))
            assert limit.rows < before or limit.rows == 1
        assert 1 <= limit.rows <= planned
