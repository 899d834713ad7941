"""The guarantees of docs/change/guarantees.md, with their bounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class BoundKind(StrEnum):
    """The quantity that a bound limits. Only times depend on the other work of the machine."""

    TIME = "time"
    COUNT = "count"
    MEMORY = "memory"


@dataclass(frozen=True, slots=True)
class Bound:
    """The highest value that a measured quantity may have, in `unit`.

    A test fails above `asserted`: the limit itself for counts and memory, a more generous value for times.
    """

    quantity: str
    limit: float
    unit: str
    kind: BoundKind
    asserted: float

    def __str__(self) -> str:
        return self.shown(self.limit)

    def shown(self, value: float) -> str:
        """`value` with its unit."""
        return f"{value:g} {self.unit}".strip()


def _time(quantity: str, limit: float, unit: str, *, asserted: float) -> Bound:
    return Bound(quantity, limit, unit, BoundKind.TIME, asserted)


def _memory(quantity: str, limit: float, unit: str) -> Bound:
    return Bound(quantity, limit, unit, BoundKind.MEMORY, limit)


def _count(quantity: str, limit: float) -> Bound:
    return Bound(quantity, limit, "", BoundKind.COUNT, limit)


@dataclass(frozen=True, slots=True)
class Guarantee:
    """A headline, a sentence that names the bounds in braces, and the bounds."""

    title: str
    sentence: str
    bounds: Mapping[str, Bound] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.sentence.format(**{name: str(bound) for name, bound in self.bounds.items()})


GUARANTEES: dict[str, Guarantee] = {
    "admission": Guarantee(
        "Overload is refused",
        "Under ten times overload the excess gets 429 or 503 with `Retry-After` within {refusal_p99_ms} (p99). "
        "Accepted requests take at most {accepted_p95_ratio} times as long (p95) as at full load. Memory grows by at "
        "most {memory_growth_percent}.",
        {
            "refusal_p99_ms": _time("time to refuse a request, p99", 100, "ms", asserted=1_000),
            "accepted_p95_ratio": _time("p95 latency of accepted requests / that at full load", 1.5, "", asserted=8),
            "memory_growth_percent": _memory("memory above that at full load", 10, "%"),
        },
    ),
    "leavers": Guarantee(
        "A caller that disconnects frees its resources",
        "100 of 200 callers disconnect. Their places are free within {free_ms}; the others are answered.",
        {"free_ms": _time("time until the place of a disconnected caller is free", 500, "ms", asserted=5_000)},
    ),
    "deadlines": Guarantee(
        "Work whose deadline has passed is not done",
        "The caller gets 504 within {late_ms} of the deadline.",
        {"late_ms": _time("time from the deadline to the 504", 200, "ms", asserted=2_000)},
    ),
    "queue": Guarantee(
        "The queue survives every engine failure",
        "When it raises an exception, hangs or runs out of memory, only the row at fault fails.",
    ),
    "drain": Guarantee(
        "SIGTERM loses no accepted work",
        "The server is not ready within {unready_s}, answers 16 uploads and 4 live sessions, and exits with 0 within "
        "{exit_s}.",
        {
            "unready_s": _time("time from SIGTERM to not ready", 1, "s", asserted=5),
            "exit_s": _time("time from SIGTERM to the exit", 30, "s", asserted=60),
        },
    ),
    "liveness": Guarantee(
        "`/livez` answers under load and detects a hung engine",
        "With a saturated engine it answers 200 within {probe_p99_ms} (p99); when the engine hangs, 503 within "
        "{detection_s} after `ENGINE_HANG_S`.",
        {
            "probe_p99_ms": _time("time of a probe under load, p99", 100, "ms", asserted=1_000),
            "detection_s": _time("time beyond `ENGINE_HANG_S` until a hang is reported", 1, "s", asserted=10),
        },
    ),
    "crash": Guarantee(
        "A crash of the engine process loses no request",
        "After each of 200 kills the next transcript takes the load time and at most {recovery_s} (median).",
        {"recovery_s": _time("median time to the next transcript, beyond the load", 5, "s", asserted=50)},
    ),
    "idle-memory": Guarantee(
        "An idle server gives its memory back",
        "With `GATEWAY_MODE` it holds at most {idle_mb}, and the next request takes the load time and at most "
        "{wake_s}. A fresh server holds at most {fresh_mb}.",
        {
            "idle_mb": _memory("memory of the server after the engine process has ended", 110, "MB"),
            "wake_s": _time("first request after a sleep, beyond the load", 2, "s", asserted=20),
            "fresh_mb": _memory("memory of a server before its first request", 85, "MB"),
        },
    ),
    "sockets": Guarantee(
        "A WebSocket peer holds little memory",
        "It holds at most {held_mib} beyond its audio. One that never reads or is half open is closed within "
        "{closed_s}.",
        {
            "held_mib": _memory("memory of a peer beyond its audio", 2, "MiB"),
            "closed_s": _time("time until an unresponsive peer is closed", 40, "s", asserted=60),
        },
    ),
    "resume": Guarantee(
        "A broken connection neither loses nor repeats a word",
        "The connection breaks 50 times, and the client resumes the session each time.",
    ),
    "mixing": Guarantee(
        "Live sessions do not mix",
        "200 sessions speak different phrases, and {crossed} of them receive words of another.",
        {"crossed": _count("sessions whose words are closer to those of another", 0)},
    ),
    "upload-cap": Guarantee(
        "An upload that is too large is refused while it arrives",
        "413 comes after at most {past_mib} beyond the limit. Memory grows by at most {memory_mib}.",
        {
            "past_mib": _memory("bytes read beyond the limit", 1, "MiB"),
            "memory_mib": _memory("growth of memory", 16, "MiB"),
        },
    ),
    "decoded-cap": Guarantee(
        "Decompression bombs are refused",
        "They get a 4xx within {refusal_s}. Memory grows by at most {memory_mib}; decoders of eight files with "
        "enormous tables hold at most {decoders_mib}.",
        {
            "refusal_s": _time("time to refuse the file", 2, "s", asserted=20),
            "memory_mib": _memory("growth of server and decoder together", 73, "MiB"),
            "decoders_mib": _memory("memory of the decoders of all files together", 256, "MiB"),
        },
    ),
    "codec": Guarantee(
        "A decoder crash affects one request",
        "When a decoder crashes or exceeds its time, its request gets 400.",
    ),
    "fuzzing": Guarantee(
        "No input breaks a route or a WebSocket",
        "Random and mutated requests cause no 5xx, no traceback and no answer slower than {slowest_s}.",
        {"slowest_s": _time("slowest answer to a fuzzed request", 5, "s", asserted=30)},
    ),
    "nothing-opened": Guarantee(
        "By default the server opens no path or address that a caller names",
        "No payload causes a file access or a connection.",
    ),
    "keys": Guarantee(
        "Nobody gets in without a key",
        "Routes and WebSockets answer 401 without a valid key, and 403 to other web pages and host names.",
    ),
    "logs": Guarantee(
        "Logs contain no speech, no names and no secrets",
        "No marked text, file name or key appears at any level.",
    ),
    "one-connection": Guarantee(
        "One connection cannot stop the others",
        "While one sends floods or endless bodies, or does not read, `/livez` answers within {probe_p99_ms} (p99), "
        "beside 52 such connections within {together_p99_ms}. Each takes at most {memory_mib}.",
        {
            "probe_p99_ms": _time("time of a probe beside the worst connection, p99", 100, "ms", asserted=1_000),
            "together_p99_ms": _time("time of a probe beside all of them at once, p99", 100, "ms", asserted=1_000),
            "memory_mib": _memory("memory of the worst connection", 64, "MiB"),
        },
    ),
    "shares": Guarantee(
        "One caller cannot take every place",
        "While one key sends slow files, abandons live sessions or fills the queue of jobs, a recording of another key "
        "takes at most {beside_ratio} times as long as by itself. All abandoned sessions hold at most {live_mib}.",
        {
            "beside_ratio": _time("time of another key's recording / alone", 4, "", asserted=10),
            "live_mib": _memory("memory of all abandoned live sessions", 400, "MiB"),
        },
    ),
    "speech-queue": Guarantee(
        "One caller cannot keep others from being heard",
        "While one key sends the longest texts or does not read its speech, texts of another key are spoken.",
    ),
    "cancelled-texts": Guarantee(
        "Cancelled texts stop nobody",
        "While one key sends and cancels long texts, texts of another key are spoken.",
    ),
    "long-texts": Guarantee(
        "Slow texts leave places to others",
        "While eight long texts of one key arrive slowly, one of another key is accepted.",
    ),
    "texts": Guarantee(
        "Odd texts leave time to others",
        "While one key sends brackets, combining marks and books, `/livez` answers within {probe_p99_ms} (p99), a "
        "recording of another key takes at most {beside_ratio} times as long as beside two busy programs, memory grows "
        "by at most {memory_mib}, and SIGTERM ends the server within {exit_s}.",
        {
            "probe_p99_ms": _time("time of a probe, p99", 100, "ms", asserted=4_000),
            "beside_ratio": _time(
                "time of another key's recording / its time next to two programs", 2.5, "", asserted=10
            ),
            "memory_mib": _memory("growth of memory", 64, "MiB"),
            "exit_s": _time("time from SIGTERM to the exit", 35, "s", asserted=60),
        },
    ),
    "turns": Guarantee(
        "Live Opus and readers leave places to others",
        "Beside six sockets with empty Ogg pages and all readers of a session, another key's Opus is transcribed.",
    ),
    "unfinished-messages": Guarantee(
        "Unfinished messages hold little memory",
        "Of 16 MiB from each of thirty sockets the server holds at most {held_mib}, and closes them within a minute.",
        {"held_mib": _memory("memory of all unfinished messages of a key", 128, "MiB")},
    ),
    "enrolment": Guarantee(
        "One caller cannot keep others from storing voices",
        "While one key stores, deletes and aborts voices, a voice of another key is stored and deleted.",
    ),
    "floods": Guarantee(
        "Floods on many sockets leave time to others",
        "While ten sockets of one key send as fast as they can, a recording of another key takes at most "
        "{beside_ratio} times as long as beside two busy programs. Memory grows by at most {memory_mib}.",
        {
            "beside_ratio": _time(
                "time of another key's recording / its time next to two programs", 2.5, "", asserted=10
            ),
            "memory_mib": _memory("memory above that before the flood", 64, "MiB"),
        },
    ),
    "open-files": Guarantee(
        "Idle connections shut nobody out",
        "Beside 1,200 of them, with a soft limit of 1,024 open files, a recording is transcribed.",
    ),
    "foreign-state": Guarantee(
        "Only the server's own files in `STATE_DIR` are deleted",
        "A start with foreign files, unknown jobs and a damaged database deletes {deleted} files.",
        {"deleted": _count("files deleted", 0)},
    ),
    "vanished": Guarantee(
        "A lost directory or process is replaced",
        "When the temporary directory or the process that starts decoders is gone, requests are answered again within "
        "{again_s}; until then they get a 503.",
        {"again_s": _time("time until a request is answered again, beyond the load", 5, "s", asserted=30)},
    ),
    "engine-faults": Guarantee(
        "A server survives faults of its processes",
        "In nine minutes of random faults at most {unexpected} of a thousand requests neither succeed nor get a 503.",
        {"unexpected": _count("turns that end otherwise", 3)},
    ),
    "moves": Guarantee(
        "A live session outlives its server",
        "Behind a load balancer the Python client continues at another server, without text for at most {moved_s} if "
        "its server is replaced, and {resumed_s} if it is killed. No word is lost, doubled or taken back.",
        {
            "moved_s": _time("longest time without a message, server replaced", 5, "s", asserted=60),
            "resumed_s": _time("longest time without a message, server killed", 5, "s", asserted=60),
        },
    ),
    "jobs-takeover": Guarantee(
        "Another server does the job of one that died",
        "One with the same database finishes it, once, at most {done_s} after the kill.",
        {"done_s": _time("time from the kill to the result", 40, "s", asserted=300)},
    ),
    "jobs-database": Guarantee(
        "The loss of the jobs' database loses no job",
        "While PostgreSQL is gone, new jobs get 503 `jobs_unavailable`, and other requests are answered. Each accepted "
        "job is done once.",
    ),
    "soak": Guarantee(
        "The server is stable over time",
        "20 min at 80 % load with a fault every 30 s cause {errors} unexpected errors. Memory grows by at most "
        "{slope_percent}.",
        {
            "errors": _count("unexpected errors", 0),
            "slope_percent": _memory("slope of memory after the warm-up", 1, "% an hour"),
        },
    ),
}
