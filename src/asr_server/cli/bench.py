"""`asr-server bench`: how fast a running server answers: files by several callers at once, and live speech."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asr_server.cli import arguments
from asr_server.cli.failure import Exit, Failure, complain, no_server

if TYPE_CHECKING:
    from asr_server.cli.load import Load, Measured

EXAMPLES = (
    "asr-server bench",
    "asr-server bench --callers 16 --requests 200 --seconds 120",
    "asr-server bench --file talk.mp3 --live 4 --json > figures.json",
)
_CODES = "exit codes: 0 measured; 1 some requests failed; 2 wrong arguments; 3 no server"
_RANKS = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    arguments.explain(parser, EXAMPLES, _CODES)
    arguments.add_server(parser)
    arguments.add_key(parser)
    parser.add_argument("--file", type=Path, help="the recording to send (default: the bundled one of 4 s)")
    parser.add_argument("--callers", type=arguments.callers, default=4, help="requests at a time, 1 to 100 (default 4)")
    parser.add_argument("--requests", type=arguments.count, default=20, help="requests in all (default 20)")
    parser.add_argument(
        "--seconds", type=arguments.count, default=30, help="end after so long, for files and for live (default 30)"
    )
    parser.add_argument(
        "--live", type=arguments.sessions, default=1, help="live sessions at a time, 0 to 100 (default 1)"
    )
    parser.add_argument("--json", action="store_true", help="the figures as one JSON object")
    parser.set_defaults(run=_run)


def _run(parsed: argparse.Namespace) -> int:
    from asr_server import demo
    from asr_server.cli import load
    from asr_server.client.files import FileError, ServerUnreachable

    wanted = load.Load(
        server=parsed.server,
        key=arguments.key(parsed),
        recording=parsed.file or demo.sample().recording,
        callers=parsed.callers,
        requests=parsed.requests,
        limit_s=parsed.seconds,
        sessions=parsed.live,
    )
    try:
        found = asyncio.run(load.measure(wanted))
    except ServerUnreachable as error:
        raise no_server(parsed.server) from error
    except (FileError, Failure) as error:
        complain("bench", f"{error.code}: {error.message}")
        return Exit.FAILED
    except OSError as error:
        complain("bench", f"{error}")
        return Exit.FAILED
    print(json.dumps(figures(wanted, found), indent=2) if parsed.json else table(wanted, found))
    failed = found.calls.failures + found.talks.failures
    return Exit.FAILED if failed or not found.calls.waits_s else Exit.DONE


def figures(load: Load, found: Measured) -> dict[str, Any]:
    """All figures, with their units in their names; None for what was not measured."""
    calls, talks = found.calls, found.talks
    return {
        "server": load.server,
        "recording_s": round(found.length_s, 3),
        "first_answer_s": round(found.first_s, 3),
        "files": {
            "callers": load.callers,
            "answered": len(calls.waits_s),
            "failed": dict(calls.failures),
            "unfinished": calls.unfinished,
            "took_s": round(calls.took_s, 3),
            "audio_s_per_s": round(_speed(found), 3) if calls.took_s else None,
            "wait_s": _ranks(calls.waits_s),
        },
        "live": {
            "sessions": load.sessions,
            "failed": dict(talks.failures),
            "partials": len(talks.partials_s),
            "partial_lag_s": _ranks(talks.partials_s),
            "finals": len(talks.finals_s),
            "final_lag_s": _ranks(talks.finals_s),
        },
    }


def table(load: Load, found: Measured) -> str:
    """The same for people."""
    calls, talks = found.calls, found.talks
    counted = f"{len(calls.waits_s)} answered, {load.callers} at a time, {calls.took_s:.2f} s"
    lines = f"{len(talks.partials_s)} partials, {len(talks.finals_s)} finals, {load.sessions} at a time"
    rows = {
        "server": load.server,
        "recording": f"{found.length_s:.2f} s",
        "first answer": f"{found.first_s:.2f} s, in no figure below",
        "files": counted + _faults(calls.failures, calls.unfinished),
        "speed": f"{_speed(found):.1f} s of audio a second" if calls.took_s else "nothing was answered",
        "wait": _line(calls.waits_s),
    }
    if load.sessions:
        rows |= {
            "live": lines + _faults(talks.failures, 0),
            "partial lag": _line(talks.partials_s),
            "final lag": _line(talks.finals_s),
        }
    return "\n".join(f"{name:<14}{value}" for name, value in rows.items())


def _speed(found: Measured) -> float:
    return len(found.calls.waits_s) * found.length_s / found.calls.took_s


def _ranks(values: Sequence[float]) -> dict[str, float] | None:
    from asr_server.cli.load import rank

    return {name: round(rank(values, share), 4) for name, share in _RANKS.items()} if values else None


def _line(values: Sequence[float]) -> str:
    ranks = _ranks(values)
    return "  ".join(f"{name} {value:.3f} s" for name, value in ranks.items()) if ranks else "none"


def _faults(failures: dict[str, int], unfinished: int) -> str:
    told = [f"{number} failed ({code})" for code, number in failures.items()]
    told += [f"{unfinished} unfinished when the time was over"] if unfinished else []
    return "".join(f", {part}" for part in told)
