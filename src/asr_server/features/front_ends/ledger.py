"""The database in which the processes of a server tell each other what they have: SQLite, in memory, in a directory of
this user alone.

A process that is killed in the middle of a change keeps nobody waiting and leaves no half of it: its lock ends with it,
and SQLite takes the half back. Nothing is written to a disk for safety: the database ends with the server.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import sqlite3
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from asr_server.schedule.admission import AdmissionTicket, streams_of
from asr_server.schedule.siblings import HeldAudio, Siblings, SiblingsUse, SiblingsWork

_SCHEMA = """
create table process (
    number integer primary key, role text not null, path text not null default '', failure text not null default '',
    work text not null default '', sessions integer not null default 0, streams integer not null default 0,
    done_s real not null default 0, beat_s real not null default 0,
    counts text not null default '{}', metrics text not null default ''
);
create table caller (
    name text, number integer, requests integer not null, live integer not null, primary key (name, number)
) without rowid;
create index caller_number on caller (number);
create table bucket (name text primary key, full_at_s real not null) without rowid;
create table session (id text primary key, number integer not null) without rowid;
create table server (draining integer not null, done_s real not null, secret text not null);
"""
ENGINE, FRONT_END, JOBS, SUPERVISOR = "engine", "front end", "jobs", "supervisor"


class Ledger(Siblings):
    """One process' connection to the database. `number`: the process'."""

    logs_plan: ClassVar[bool] = False

    def __init__(self, path: Path, number: int) -> None:
        self.number = number
        # No statement begins a transaction by itself: `exclusive` does.
        self._db = sqlite3.connect(path, isolation_level=None)
        self._db.execute("pragma synchronous = off")
        # Waiting for a writer: the kernel wakes the next one at once, where SQLite would try again after milliseconds,
        # in which the event loop stood still.
        self._lock = path.with_suffix(".lock").open("ab")
        self._writing = False

    @classmethod
    def make(cls, path: Path, number: int) -> Ledger:
        """Make a new database, of which this is the first process."""
        with sqlite3.connect(path) as database:
            database.execute("pragma journal_mode = wal")
            database.executescript(_SCHEMA)
            database.execute("insert into server values (0, 0, ?)", (os.urandom(16).hex(),))
        return cls(path, number)

    def close(self) -> None:
        """Close the connection."""
        self._db.close()
        self._lock.close()

    # -- limits: see `Siblings` --------------------------------------------------------------------------------------

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        # Decisions are taken on the event loop alone, so a flag tells a block within a block.
        if self._writing:  # a place that is taken may evict a session, which changes what is told
            yield
            return
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._writing = True
        try:
            self._db.execute("begin immediate")
            try:
                yield
            finally:
                self._db.execute("commit")  # after an error too: what was told so far is true
        finally:
            self._writing = False
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def _write(self, statement: str, *given: Any) -> None:
        with self.exclusive():
            self._db.execute(statement, given)

    def use(self, caller: str) -> SiblingsUse:
        requests, live = self._one(
            "select total(requests), total(live) from caller where name = ? and number != ?", caller, self.number
        )
        (live_of_all,) = self._one("select total(live) from caller where number != ?", self.number)
        bucket = self._one("select full_at_s from bucket where name = ?", caller)
        return SiblingsUse(int(requests), int(live), int(live_of_all), bucket[0] if bucket else -math.inf)

    def note_use(self, caller: str, use: SiblingsUse) -> None:
        if use.requests:
            values = caller, self.number, use.requests, use.live
            self._write("insert or replace into caller values (?, ?, ?, ?)", *values)
        else:
            self._write("delete from caller where name = ? and number = ?", caller, self.number)
        # Another process may have taken of the bucket since this one read it, so it is never set back.
        if use.full_at_s > time.monotonic():
            self._write(
                "insert into bucket values (?1, ?2) on conflict do update set full_at_s = max(full_at_s, ?2)",
                caller,
                use.full_at_s,
            )

    def note_session(self, session: str, *, kept: bool) -> None:
        if kept:
            self._write("insert or replace into session values (?, ?)", session, self.number)
        else:
            self._write("delete from session where id = ? and number = ?", session, self.number)

    def work(self) -> SiblingsWork:
        # Read without the lock: a process that decides has it already, and for others a moment's difference is none.
        found = self._db.execute(
            "select work, sessions, streams, done_s from process where number != ?", (self.number,)
        ).fetchall()
        (ended_s,) = self._one("select done_s from server")
        held = [
            AdmissionTicket(left_s, time_limit_s=math.inf, bulk=bulk, live=live, known=known, share=share)
            for work, *_ in found
            if work
            for share, bulk, live, known, left_s in json.loads(work)
        ]
        return SiblingsWork(
            held,
            streams=sum(streams for _, _, streams, _ in found),
            sessions=sum(sessions for _, sessions, _, _ in found),
            done_s=ended_s + sum(done_s for *_, done_s in found),
        )

    def note_work(self, held: Collection[HeldAudio], done_s: float) -> None:
        sums: dict[tuple[str, bool, bool, bool], float] = {}
        for ticket in held:
            kind = ticket.share, ticket.bulk, ticket.live, ticket.known
            sums[kind] = sums.get(kind, 0.0) + ticket.left_s
        sessions = sum(ticket.live and not ticket.left for ticket in held)
        work = json.dumps([[*kind, left_s] for kind, left_s in sums.items()])
        self._write(
            "update process set work = ?, sessions = ?, streams = ?, done_s = ? where number = ?",
            *(work, sessions, streams_of(held), done_s, self.number),
        )

    def leave(self) -> None:
        """Have the others send nobody here any more: this process is about to end, and its sessions move."""
        self._write("delete from session where number = ?", self.number)

    # -- processes ---------------------------------------------------------------------------------------------------

    def add(self, number: int, role: str) -> None:
        """Add a process, which nobody can reach yet."""
        self._write("insert into process (number, role) values (?, ?)", number, role)

    def found(self, number: int, path: str) -> None:
        """Tell the others where they reach a process."""
        self._write("update process set path = ?, failure = '' where number = ?", path, number)

    def unreachable(self, number: int, reason: str = "") -> None:
        """Have the others wait for another process of this role; with a reason, fail what they want of it."""
        self._write("update process set path = '', failure = ? where number = ?", reason, number)

    def remove(self, number: int) -> str:
        """Remove a process that has ended, with all that it had under way, and return the metrics that it told last.

        What it has answered still counts, or the speed that is computed of it would drop.
        """
        with self.exclusive():
            gone = self._one("select done_s, metrics from process where number = ?", number)
            for table in ("process", "caller", "session"):
                self._write(f"delete from {table} where number = ?", number)
            if gone:
                self._write("update server set done_s = done_s + ?", gone[0])
        return gone[1] if gone else ""

    def reached(self, role: str) -> tuple[int, str, str]:
        """Return the newest process of this role that can be reached, its path, and otherwise why it cannot."""
        found = self._one(
            "select number, path, failure from process where role = ? order by path != '' desc, number desc", role
        )
        return found or (0, "", "")

    def keeper(self, session: str) -> tuple[int, str]:
        """Return the other process that keeps a session, or what else has this id, and its path; 0 for none."""
        found = self._one(
            "select number, path from session join process using (number) where id = ? and number != ? and path != ''",
            session,
            self.number,
        )
        return found or (0, "")

    def tell(self, counts: Mapping[str, int]) -> None:
        """Tell the others what this process has, and that it moves."""
        now_s = time.monotonic()
        self._write(
            "update process set counts = ?, beat_s = ? where number = ?", json.dumps(counts), now_s, self.number
        )

    def tell_metrics(self, metrics: str) -> None:
        """Keep the metrics of this process, in Prometheus' text format, for the sum of all."""
        self._write("update process set metrics = ? where number = ?", metrics, self.number)

    def beat_age_s(self, number: int) -> float:
        """Return the seconds since a process moved last; 0 if it never told."""
        found = self._one("select beat_s from process where number = ?", number)
        return time.monotonic() - found[0] if found and found[0] else 0.0

    def told(self) -> list[Mapping[str, int]]:
        """Return what the other processes have told of themselves."""
        rows = self._db.execute("select counts from process where number != ?", (self.number,))
        return [json.loads(counts) for (counts,) in rows]

    def told_metrics(self) -> list[str]:
        """Return the metrics of all processes, this one included, as they told them last."""
        return [text for (text,) in self._db.execute("select metrics from process order by number")]

    # -- the server --------------------------------------------------------------------------------------------------

    @property
    def secret(self) -> str:
        """Return what only processes of this server know."""
        found: str = self._one("select secret from server")[0]
        return found

    @property
    def draining(self) -> bool:
        """Return whether the whole server is about to end."""
        return bool(self._one("select draining from server")[0])

    def drain(self) -> None:
        """Tell all processes that the server is about to end."""
        self._write("update server set draining = 1")

    def forget_full_buckets(self) -> None:
        """Remove the token buckets that are full again: there is one for each caller of the last minute."""
        self._write("delete from bucket where full_at_s < ?", time.monotonic())

    def _one(self, query: str, *given: Any) -> Any:
        return self._db.execute(query, given).fetchone() or ()
