"""Requests that are sent when jobs have ended: at least once each, and bounded in number and time.

A request is part of its job's record, so that it survives a restart, and another server continues with the requests of
a server that is gone. A failed request is sent again after a growing wait. If a server ends after an answer arrived
and before it is recorded, the request is sent again.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

from loguru import logger

from asr_server.core.errors import AsrError, JobsUnavailable
from asr_server.jobs.record import FollowUp, FollowUpState, JobRecord
from asr_server.jobs.store import Claim, ClaimLost, JobStore

# The longest attempt, which is shorter than its lease.
_ATTEMPT_S = 100.0
# The most attempts at once, of all owners and of one owner: a host that does not answer occupies a slot until its
# attempt times out.
_AT_ONCE, _AT_ONCE_EACH = 8, 4
_NOBODY = " "
# The waits after the first, second ... attempt grow threefold up to an hour: twelve attempts take about five hours. If
# a job is removed after JOB_TTL, its pending request is not sent any more.
_FIRST_WAIT_S, _GROWTH, _LONGEST_WAIT_S = 5.0, 3, 3_600.0
_MAX_ATTEMPTS = 12


class FollowUpSender(Protocol):
    """Sends the requests. A feature implements it, and so do tests."""

    @property
    def field(self) -> str:
        """The field of a request for a job that names the URL."""

    def check(self, url: str) -> None:
        """Raise `InvalidInput` if requests to this URL are not allowed."""

    async def send(self, record: JobRecord, url: str) -> FollowUpState:
        """Send the request once. It is sent again later if this returns WAITING, or raises `AsrError` or `OSError`."""


class FollowUps:
    """The requests of all jobs of a store. Used from the event loop. `wake` is called at the end of each attempt."""

    def __init__(self, sender: FollowUpSender | None, store: JobStore, wake: Callable[[], None]) -> None:
        self._sender, self._store, self._wake = sender, store, wake
        self.field = sender.field if sender is not None else ""  # the field of a request for a job that names the URL
        self.under_way: dict[asyncio.Task[None], str] = {}  # attempts, and their owners; cancelled by the runner

    @property
    def pending(self) -> int:
        """Jobs whose requests are in progress, or wait for only this server."""
        # A store that is not shared counts the requests in progress too.
        return max(len(self.under_way), self._store.waiting_follow_ups)

    def asked(self, values: Mapping[str, object]) -> FollowUp | None:
        """Return the follow-up that the fields of a request ask for, or None. Raises `InvalidInput`."""
        if self._sender is None or not (url := values.get(self.field)):
            return None
        self._sender.check(str(url))
        return FollowUp(self.field, str(url))

    async def begin_due(self) -> None:
        """Begin to send the requests that are due, as long as slots are free."""
        while len(self.under_way) < _AT_ONCE:
            # While a slot is free, at most one owner is at its limit.
            owners = Counter(self.under_way.values()).items()
            busy = next((owner for owner, count in owners if count >= _AT_ONCE_EACH), _NOBODY)
            if (claim := await self._store.claim_follow_up(busy)) is None:
                return
            task = asyncio.create_task(self._one(claim))
            self.under_way[task] = claim.record.owner
            task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[None]) -> None:
        del self.under_way[task]
        self._wake()
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.opt(exception=error).error("request about a job ended unexpectedly")

    async def _one(self, claim: Claim) -> None:
        """Send the request of the job once, and store the outcome."""
        record, due = claim.record, claim.record.follow_up
        assert due is not None
        state, attempts = await self._sent(record, due), due.attempts + 1
        if state is FollowUpState.WAITING and attempts >= _MAX_ATTEMPTS:
            state = FollowUpState.FAILED
        wait_s = _wait_s(attempts) if state is FollowUpState.WAITING else None
        logger.info("request about a job", id=record.id, kind=due.field, outcome=state.value, attempts=attempts)
        record = replace(record, follow_up=replace(due, state=state, attempts=attempts))
        # If the store does not answer, the request stays due and is sent again.
        with suppress(ClaimLost, JobsUnavailable):
            await self._store.keep_follow_up(claim, record, wait_s)

    async def _sent(self, record: JobRecord, due: FollowUp) -> FollowUpState:
        if self._sender is None:  # this server does not have the feature any more
            return FollowUpState.FAILED
        try:
            async with asyncio.timeout(_ATTEMPT_S):
                return await self._sender.send(record, due.url)
        except (AsrError, OSError) as error:  # TimeoutError is an OSError
            code = error.code if isinstance(error, AsrError) else type(error).__name__
            logger.warning("request about a job failed", id=record.id, kind=due.field, reason=code)
        except Exception as error:  # a fault of one request must not leave its job waiting for ever
            logger.opt(exception=error).error("request about a job failed unexpectedly", id=record.id, kind=due.field)
        return FollowUpState.WAITING


def _wait_s(attempts: int) -> float:
    """Return the wait after this many attempts. It is randomised, so that the requests of many jobs spread out."""
    longest_s: float = min(_LONGEST_WAIT_S, _FIRST_WAIT_S * _GROWTH ** (attempts - 1))
    return random.uniform(0.5, 1.0) * longest_s
