"""The length and the randomness of the fuzzing."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

_GIVEN_S = float(os.environ.get("FUZZ_S", "0"))
SCHEMA_S = 25.0  # of the 60 s of a plain run
FACTOR = max(1.0, _GIVEN_S / 60.0)
SEED = os.environ.get("FUZZ_SEED", "1")  # for what hypothesis does not draw


def effort(examples: int) -> settings:
    """Return settings with `examples` examples in a plain run, and proportionally more in a longer one."""
    return settings(
        max_examples=int(examples * FACTOR),
        # A run that others must be able to repeat has the same examples each time; a long one looks for new ones.
        derandomize=not _GIVEN_S,
        deadline=None,
        database=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )
