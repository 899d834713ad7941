"""The most tokens of an answer."""

from asr_server.engine.budget import token_budget


def test_the_budget_follows_the_audio():
    """12 tokens a second, never under 32: no constant that truncates long speech."""
    assert [token_budget(16_000 * seconds) for seconds in (0, 1, 10, 30)] == [32, 32, 120, 360]
