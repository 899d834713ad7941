"""The length and the randomness of the fuzzing."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

_GIVEN_S = float(os.environ.get("FUZZ_S", "0"))
# How the time is shared out, in seconds of the fixed selection.
SCHEMA_S = 25.0
_TOTAL_S = 60.0

FACTOR = max(1.0, _GIVEN_S / _TOTAL_S)
# A run that others must be able to repeat has the same examples each time; a long one looks for new ones.
REPEATABLE = not _GIVEN_S
# For what hypothesis does not draw.
SEED = os.environ.get("FUZZ_SEED", "1")


def effort(examples: int) -> settings:
    """Return settings with `examples` examples in a plain run, and proportionally more in a longer one."""
    return settings(
        max_examples=int(examples * FACTOR),
        derandomize=REPEATABLE,
        deadline=None,
        database=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )
