"""Helpers for tests of metrics, errors and times."""

import asyncio
from contextlib import contextmanager

import pytest

from asr_server.core.errors import AsrError


class Clock:
    """Monotonic seconds that only the test moves."""

    def __init__(self, now_s=1_000.0):
        self.now_s = now_s

    def __call__(self):
        return self.now_s


def counts(registry, name):
    """Return the series of a metric that are not zero, by the values of their labels."""
    samples = (sample for family in registry.collect() for sample in family.samples)
    return {tuple(one.labels.values()): one.value for one in samples if one.name == name and one.value}


async def until(condition):
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - what is waited for sets no event
            await asyncio.sleep(0.005)


@contextmanager
def raises(code, match=None):
    """Expect an error with this code."""
    with pytest.raises(AsrError, match=match) as caught:
        yield caught
    assert caught.value.code == code
