"""Fixtures of the tests of the simulation."""

import pytest

from asr_server.core.settings import Settings
from asr_server_sizing.profile import Profile, StepCosts
from asr_server_sizing.speech import LiveRules


@pytest.fixture(scope="session")
def rules():
    """The rules of the default settings."""
    return LiveRules.of(Settings(_env_file=None))


@pytest.fixture(scope="session")
def make_profile():
    """Make a profile with some costs, everything else free."""

    def make(slots=8, tokens_per_s=3.0, partial_passes=(3,), **costs):
        steps = StepCosts(**{"decode_s": 0.0, "decode_row_s": 0.0, "prefill_s": 0.0, "prefill_token_s": 0.0, **costs})
        return Profile("model", "machine", "a test", "2026-11-23", slots, slots, steps, tokens_per_s, partial_passes)

    return make
