"""What watchers of jobs in a database see, and how often it is read."""

import asyncio
from contextlib import aclosing
from dataclasses import replace

import pytest

from asr_server.core.errors import JobsUnavailable
from asr_server.features.shared_jobs import record_feed
from asr_server.features.shared_jobs.record_feed import RecordFeed
from asr_server.jobs.record import JobRecord, JobState, new_id
from asr_server.recordings.requests import TranscriptionRequest

FIRST, SECOND = (JobRecord(new_id(), TranscriptionRequest(), 1.0) for _ in range(2))


class Table:
    """Records by id. `reads`: the ids that were asked for together."""

    def __init__(self, *records):
        self.records, self.reads, self.away = {record.id: record for record in records}, [], False
        self._read = asyncio.Condition()

    async def was_read(self, times):
        """Return when it was read so often."""
        async with asyncio.timeout(20):
            async with self._read:
                await self._read.wait_for(lambda: len(self.reads) >= times)

    async def read(self, identities):
        async with self._read:
            self.reads.append(set(identities))
            self._read.notify_all()
        if self.away:
            raise JobsUnavailable("away")
        return {identity: self.records[identity] for identity in identities if identity in self.records}


@pytest.fixture
async def feed_of(monkeypatch):
    """A function that makes a feed of a table, which reads without a pause."""
    monkeypatch.setattr(record_feed, "_PAUSE_S", 0.01)
    monkeypatch.setattr(record_feed, "_LEAST_PAUSE_S", 0.0)
    tasks = []

    def made(table):
        feed = RecordFeed(table.read)
        tasks.append(asyncio.create_task(feed.run()))
        return feed

    yield made
    for task in tasks:
        task.cancel()


async def last_of(feed, record, until):
    """The record that a watcher sees when `until` holds, or None when the job is removed first."""
    async with aclosing(feed.changes(record)) as changes:
        async for seen in changes:
            if until(seen):
                return seen
    return None


async def test_watchers_are_read_for_together_until_they_leave(feed_of):
    """One read has the jobs of all; nothing is read when nobody watches."""
    table = Table(FIRST, SECOND)
    feed = feed_of(table)
    over = [
        asyncio.create_task(last_of(feed, record, lambda seen: seen.state.over)) for record in (FIRST, SECOND, FIRST)
    ]
    await table.was_read(3)
    assert {FIRST.id, SECOND.id} in table.reads
    table.records = {one.id: replace(one, state=JobState.FAILED) for one in (FIRST, SECOND)}
    assert await asyncio.gather(*over) == [table.records[one.id] for one in (FIRST, SECOND, FIRST)]
    await asyncio.sleep(0.05)
    count = len(table.reads)
    await asyncio.sleep(0.05)
    assert len(table.reads) == count


async def test_a_watcher_of_a_removed_job_ends(feed_of):
    """Without another record."""
    table = Table()
    assert await last_of(feed_of(table), FIRST, lambda seen: False) is None


async def test_who_begins_to_watch_sees_what_was_read_last(feed_of):
    """And not what it knew itself, which is older."""
    newer = replace(FIRST, done_s=3.0)
    table = Table(newer)
    feed = feed_of(table)
    async with aclosing(feed.changes(FIRST)) as changes:
        while await anext(changes) != newer:
            pass
        table.away = True
        assert await last_of(feed, FIRST, lambda seen: True) == newer


async def test_watchers_wait_while_nothing_can_be_read(feed_of):
    """And see what happened meanwhile."""
    table = Table(FIRST)
    feed, table.away = feed_of(table), True
    watcher = asyncio.create_task(last_of(feed, FIRST, lambda seen: seen.state.over))
    await table.was_read(3)
    table.records, table.away = {FIRST.id: replace(FIRST, state=JobState.FAILED)}, False
    assert (await watcher).state is JobState.FAILED


async def test_who_wakes_the_watchers_wakes_them_without_a_read(feed_of, monkeypatch):
    """They look at something else, such as whether the server stops."""
    table = Table(FIRST)
    feed, table.away, stops = feed_of(table), True, []
    watcher = asyncio.create_task(last_of(feed, FIRST, lambda seen: bool(stops)))
    await table.was_read(3)
    assert not watcher.done()
    stops.append(True)
    feed.wake()
    assert await watcher == FIRST
