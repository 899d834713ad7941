"""Planning of rows and bytes."""

from hypothesis import given
from hypothesis import strategies as st

from asr_server.engine.qwen import capacity

MIB = 1024 * 1024
RELEASED = capacity.token_bytes(layers=28, kv_heads=8, head_dim=128, item_bytes=2)


def test_a_token_of_the_released_models_takes_112_kib():
    """The figure that is published for both sizes."""
    assert RELEASED == 112 * 1024


@given(st.integers(0, 200_000), st.integers(0, 50_000), st.integers(1, 256), st.sampled_from(["cpu", "cuda"]))
def test_the_plan_stays_within_its_budget(free_mb, budget_mb, max_batch, device):
    """Rows and sessions together never exceed the budget, but for the one row that must be."""
    free = free_mb * MIB
    plan = capacity.plan(
        free_bytes=free, kv_budget_mb=budget_mb, max_batch=max_batch, token_bytes=RELEASED, device=device
    )
    assert 1 <= plan.rows <= max_batch
    budget = budget_mb * MIB or free * 0.6
    if plan.rows > 1:
        assert plan.rows_bytes + plan.prefix_cache_bytes <= budget


def test_a_large_gpu_holds_the_whole_batch_and_a_small_one_less():
    """The number of rows follows the memory."""
    rows = [
        capacity.plan(
            free_bytes=gb * 1024 * MIB, kv_budget_mb=0, max_batch=64, token_bytes=RELEASED, device="cuda"
        ).rows
        for gb in (1, 8, 80)
    ]
    assert rows[0] < rows[1] < rows[2] == 64
