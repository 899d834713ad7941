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
        "The server accepts only as much work as it can do, counted in seconds of audio",
        "Under ten times overload the server refuses the excess with 429 or 503 and a `Retry-After` of 1 to 60 s, "
        "within {refusal_p99_ms} (p99). Accepted requests take at most {accepted_p95_ratio} times as long (p95) as at "
        "full load. Memory grows by at most {memory_growth_percent}.",
        {
            "refusal_p99_ms": _time("time to refuse a request, p99", 100, "ms", asserted=1_000),
            "accepted_p95_ratio": _time("p95 latency of accepted requests / that at full load", 1.5, "", asserted=8),
            "memory_growth_percent": _memory("memory above that at full load", 10, "%"),
        },
    ),
    "leavers": Guarantee(
        "A caller that disconnects frees its resources",
        "100 of 200 callers disconnect at random moments. Their places are free within {free_ms}, none of their tasks "
        "and files remain open, and all others are answered.",
        {"free_ms": _time("time until the place of a disconnected caller is free", 500, "ms", asserted=5_000)},
    ),
    "deadlines": Guarantee(
        "Work whose deadline has passed is not done",
        "The caller gets 504 within {late_ms} of the deadline. The expired work never runs.",
        {"late_ms": _time("time from the deadline to the 504", 200, "ms", asserted=2_000)},
    ),
    "queue": Guarantee(
        "The queue survives every engine failure",
        "When the engine raises an exception, hangs or runs out of memory, only the row at fault fails, and the next "
        "request succeeds.",
    ),
    "drain": Guarantee(
        "SIGTERM loses no accepted work",
        "The server is not ready within {unready_s}. 16 uploads are answered, and 4 live sessions receive their final "
        "and close code 1001. The process exits with 0 within {exit_s}.",
        {
            "unready_s": _time("time from SIGTERM to not ready", 1, "s", asserted=5),
            "exit_s": _time("time from SIGTERM to the exit", 30, "s", asserted=60),
        },
    ),
    "liveness": Guarantee(
        "`/livez` answers under load and detects a hung engine",
        "While the engine is saturated, `/livez` answers 200 within {probe_p99_ms} (p99). When the engine thread "
        "hangs, it answers 503 at most {detection_s} after `ENGINE_HANG_S` (15 s).",
        {
            "probe_p99_ms": _time("time of a probe under load, p99", 100, "ms", asserted=1_000),
            "detection_s": _time("time beyond `ENGINE_HANG_S` until a hang is reported", 1, "s", asserted=10),
        },
    ),
    "crash": Guarantee(
        "A crash of the engine process loses no request",
        "The engine process is killed 200 times under load. Every request gets its words, and the next transcript "
        "comes within the load time and {recovery_s}. A crash loop stops with a clear error.",
        {"recovery_s": _time("median time to the next transcript, beyond the load", 5, "s", asserted=50)},
    ),
    "idle-memory": Guarantee(
        "An idle server gives its memory back",
        "With `GATEWAY_MODE` the idle engine process has ended, and the server holds at most {idle_mb}. The next "
        "request takes the load time and at most {wake_s}. A fresh server holds at most {fresh_mb}.",
        {
            "idle_mb": _memory("memory of the server after the engine process has ended", 110, "MB"),
            "wake_s": _time("first request after a sleep, beyond the load", 2, "s", asserted=20),
            "fresh_mb": _memory("memory of a server before its first request", 85, "MB"),
        },
    ),
    "sockets": Guarantee(
        "A WebSocket peer cannot hold more than a bounded amount of memory",
        "A peer holds at most {held_mib} beyond its audio, whatever the size of its frames. A peer that never reads "
        "and a half-open connection are closed within {closed_s}.",
        {
            "held_mib": _memory("memory of a peer beyond its audio", 2, "MiB"),
            "closed_s": _time("time until an unresponsive peer is closed", 40, "s", asserted=60),
        },
    ),
    "resume": Guarantee(
        "A broken connection neither loses nor repeats a word",
        "The connection breaks 50 times during speech, and the client resumes the session each time.",
    ),
    "mixing": Guarantee(
        "Live sessions do not mix",
        "200 live sessions speak different phrases at the same time, and {crossed} of them receive words of another.",
        {"crossed": _count("sessions whose words are closer to those of another", 0)},
    ),
    "upload-cap": Guarantee(
        "An upload that is too large is refused while it arrives",
        "The server answers 413 after at most {past_mib} beyond the limit. Memory grows by at most {memory_mib}.",
        {
            "past_mib": _memory("bytes read beyond the limit", 1, "MiB"),
            "memory_mib": _memory("growth of memory", 16, "MiB"),
        },
    ),
    "decoded-cap": Guarantee(
        "A recording that is too long is refused while it is decoded",
        "Decompression bombs, false headers and 10 h of silence in 1 MB get a 4xx within {refusal_s}. Memory grows by "
        "at most {memory_mib}, twice the samples of the longest recording that the test's server allows. Eight small "
        "files at once whose tables are enormous make decoders of at most {decoders_mib} together.",
        {
            "refusal_s": _time("time to refuse the file", 2, "s", asserted=20),
            "memory_mib": _memory("growth of server and decoder together", 73, "MiB"),
            "decoders_mib": _memory("memory of the decoders of all files together", 256, "MiB"),
        },
    ),
    "codec": Guarantee(
        "A decoder crash affects one request",
        "When a decoder is killed, crashes with SIGSEGV or exceeds its time, its request gets 400 and the server "
        "continues.",
    ),
    "fuzzing": Guarantee(
        "No input breaks a route or a WebSocket",
        "Random and mutated requests cause no 5xx, no traceback in an answer, and no answer slower than {slowest_s}.",
        {"slowest_s": _time("slowest answer to a fuzzed request", 5, "s", asserted=30)},
    ),
    "nothing-opened": Guarantee(
        "By default the server opens no path and no address that a caller names",
        "None of the payloads causes a file access or a connection.",
    ),
    "keys": Guarantee(
        "Nobody gets in without a key",
        "Every route and WebSocket answers 401 without a valid key, and 403 to web pages and host names that are not "
        "allowed.",
    ),
    "logs": Guarantee(
        "Logs contain no speech, no names and no secrets",
        "None of the marked texts, file names and keys appears in the log at any level.",
    ),
    "one-connection": Guarantee(
        "One connection cannot stop the others",
        "While a connection sends tiny frames, messages as fast as they go, requests whose answers it does not read, "
        "bodies that trickle or enormous text fields, `/livez` answers within {probe_p99_ms} (p99), and beside all of "
        "them at once, over 52 connections, within {together_p99_ms}. Memory grows by at most {memory_mib} for each of "
        "these connections.",
        {
            "probe_p99_ms": _time("time of a probe beside the worst connection, p99", 100, "ms", asserted=1_000),
            "together_p99_ms": _time("time of a probe beside all of them at once, p99", 100, "ms", asserted=1_000),
            "memory_mib": _memory("memory of the worst connection", 64, "MiB"),
        },
    ),
    "shares": Guarantee(
        "One caller cannot take every place",
        "While one key sends files that decode slowly, leaves live sessions behind or fills the queue of jobs, a "
        "recording of 4 s by another key takes at most {beside_ratio} times as long as by itself. All abandoned live "
        "sessions together hold at most {live_mib}.",
        {
            "beside_ratio": _time("time of another key's recording / alone", 4, "", asserted=10),
            "live_mib": _memory("memory of all abandoned live sessions", 400, "MiB"),
        },
    ),
    "speech-queue": Guarantee(
        "One caller cannot keep others from being heard",
        "While one key sends the longest and slowest texts, does not read what is spoken, disconnects or closes its "
        "half of the connection, sentences of another key are spoken and its recordings are transcribed.",
    ),
    "cancelled-texts": Guarantee(
        "A text that is cancelled again and again stops nobody",
        "While one key sends and cancels long texts over six sockets, sentences of another key are spoken and its "
        "recordings are transcribed.",
    ),
    "long-texts": Guarantee(
        "Long texts that arrive slowly leave places to others",
        "While eight long texts of one key arrive slowly, one of another key is accepted.",
    ),
    "texts": Guarantee(
        "Long and odd texts leave time to others",
        "While four programs send brackets, combining marks and books as texts of one key, `/livez` answers within "
        "{probe_p99_ms} (p99), and a recording of another key takes at most {beside_ratio} times as long as next to "
        "two programs that only use the processor. Memory grows by at most {memory_mib}, and SIGTERM ends the server "
        "within {exit_s}.",
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
        "Messages that are not ended hold little memory",
        "Thirty sockets of one key send 16 MiB each of a message that they do not end. The server holds at most "
        "{held_mib} of it, closes the sockets within a minute, and transcribes another key's recording meanwhile.",
        {"held_mib": _memory("memory of all unfinished messages of a key", 128, "MiB")},
    ),
    "enrolment": Guarantee(
        "One caller cannot keep others from storing voices",
        "While one key stores voices of five minutes each, deletes voices in use and breaks uploads off, a voice of "
        "another key is stored and deleted, and its recordings are transcribed.",
    ),
    "floods": Guarantee(
        "Many sockets that send without end leave time to others",
        "While ten sockets of one key send frames, messages or texts as fast as they go, a recording of another key "
        "takes at most {beside_ratio} times as long as next to two programs that only use the processor, and memory "
        "grows by at most {memory_mib}.",
        {
            "beside_ratio": _time(
                "time of another key's recording / its time next to two programs", 2.5, "", asserted=10
            ),
            "memory_mib": _memory("memory above that before the flood", 64, "MiB"),
        },
    ),
    "open-files": Guarantee(
        "Idle connections shut nobody out",
        "With a soft limit of 1,024 open files and 1,200 idle connections a recording is transcribed.",
    ),
    "foreign-state": Guarantee(
        "Nothing in `STATE_DIR` that is not the server's own is deleted",
        "A start with files of others, with files of jobs that no database knows, and with a damaged database deletes "
        "{deleted} files.",
        {"deleted": _count("files deleted", 0)},
    ),
    "vanished": Guarantee(
        "What vanishes is noticed",
        "A temporary directory vanishes, or the process that starts decoders is stopped. "
        "Requests are answered again within {again_s}, and until then get a 503 that invites a retry.",
        {"again_s": _time("time until a request is answered again, beyond the load", 5, "s", asserted=30)},
    ),
    "engine-faults": Guarantee(
        "A server survives faults of its processes",
        "For nine minutes temporary directories vanish, and processes are paused, stopped and killed at random: the "
        "engine, decoders and the process that starts them. Of a thousand or more turns at most "
        "{unexpected} end otherwise than right or with a 503 that invites a retry within 2 s of a fault.",
        {"unexpected": _count("turns that end otherwise", 3)},
    ),
    "moves": Guarantee(
        "A live session outlives its server",
        "Servers behind a load balancer are replaced, and killed, while three people speak. The Python client "
        "continues in new sessions at another server: no word is lost, doubled or taken back. It gets no text for at "
        "most {moved_s} if a server is replaced, and {resumed_s} if it is killed.",
        {
            "moved_s": _time("longest time without a message, server replaced", 5, "s", asserted=60),
            "resumed_s": _time("longest time without a message, server killed", 5, "s", asserted=60),
        },
    ),
    "jobs-takeover": Guarantee(
        "The job of a server that died is done by another",
        "Of two servers with one database the one that runs a job is killed. The other one has done it at most "
        "{done_s} later, once.",
        {"done_s": _time("time from the kill to the result", 40, "s", asserted=300)},
    ),
    "jobs-database": Guarantee(
        "The loss of the jobs' database loses no job",
        "PostgreSQL is killed under load and started again. New jobs get 503 `jobs_unavailable` meanwhile, all "
        "other requests are answered, and each job that was accepted is done once.",
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
