"""`asr-server bench`: measures a running server: recordings from several callers at once, and live sessions."""

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
    from asr_server_sizing.server_load import Load, Measurement

EXAMPLES = (
    "asr-server bench",
    "asr-server bench --callers 16 --requests 200 --seconds 120",
    "asr-server bench --file talk.mp3 --live 4 --json > figures.json",
)
_CODES = "exit codes: 0 measured; 1 some requests failed; 2 wrong arguments; 3 no server"
_RANKS = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    arguments.explain(parser, EXAMPLES, _CODES)
    arguments.add_server(parser)
    arguments.add_key(parser)
    parser.add_argument("--file", type=Path, help="the recording to send (default: the bundled one, 4 s long)")
    parser.add_argument("--callers", type=_callers, default=4, help="requests at a time, 1 to 100 (default 4)")
    parser.add_argument("--requests", type=arguments.count, default=20, help="requests in all (default 20)")
    parser.add_argument(
        "--seconds",
        type=arguments.count,
        default=30,
        help="time limit for the requests, and for the live sessions (default 30)",
    )
    parser.add_argument("--live", type=_sessions, default=1, help="live sessions at a time, 0 to 100 (default 1)")
    parser.add_argument("--json", action="store_true", help="print the figures as one JSON object")
    parser.set_defaults(run=_run)


def _callers(text: str) -> int:
    """Return a number of callers, at most the number of connections of one client."""
    return arguments.within(text, 1, 100)


def _sessions(text: str) -> int:
    """Return a number of live sessions; 0 for none."""
    return arguments.within(text, 0, 100)


def _run(parsed: argparse.Namespace) -> int:
    from asr_server import demo
    from asr_server.client.files import FileError, ServerUnreachable
    from asr_server_sizing.server_load import Load, measure

    load = Load(
        server=arguments.server(parsed),
        key=arguments.key(parsed),
        recording=parsed.file or demo.sample().recording,
        callers=parsed.callers,
        requests=parsed.requests,
        limit_s=parsed.seconds,
        sessions=parsed.live,
    )
    try:
        measured = asyncio.run(measure(load))
    except ServerUnreachable as error:
        raise no_server(load.server) from error
    except (FileError, Failure) as error:
        complain("bench", f"{error.code}: {error.message}")
        return Exit.FAILED
    except OSError as error:
        complain("bench", f"{error}")
        return Exit.FAILED
    print(json.dumps(figures(load, measured), indent=2) if parsed.json else table(load, measured))
    failed = measured.requests.failures + measured.live.failures
    return Exit.FAILED if failed or not measured.requests.latencies_s else Exit.DONE


def figures(load: Load, measured: Measurement) -> dict[str, Any]:
    """Return all figures, with units in their names. None for what was not measured."""
    requests, live = measured.requests, measured.live
    return {
        "server": load.server,
        "recording_s": round(measured.duration_s, 3),
        "first_answer_s": round(measured.first_s, 3),
        "files": {
            "callers": load.callers,
            "answered": len(requests.latencies_s),
            "failed": dict(requests.failures),
            "unfinished": requests.unfinished,
            "took_s": round(requests.elapsed_s, 3),
            "audio_s_per_s": round(_speed(measured), 3) if requests.elapsed_s else None,
            "wait_s": _ranks(requests.latencies_s),
        },
        "live": {
            "sessions": load.sessions,
            "failed": dict(live.failures),
            "partials": len(live.partials_s),
            "partial_lag_s": _ranks(live.partials_s),
            "finals": len(live.finals_s),
            "final_lag_s": _ranks(live.finals_s),
        },
    }


def table(load: Load, measured: Measurement) -> str:
    """Return the figures as a table for reading."""
    requests, live = measured.requests, measured.live
    requests_row = f"{len(requests.latencies_s)} answered, {load.callers} at a time, {requests.elapsed_s:.2f} s"
    live_row = f"{len(live.partials_s)} partials, {len(live.finals_s)} finals, {load.sessions} at a time"
    rows = {
        "server": load.server,
        "recording": f"{measured.duration_s:.2f} s",
        "first answer": f"{measured.first_s:.2f} s, in no figure below",
        "files": requests_row + _failures(requests.failures, requests.unfinished),
        "speed": f"{_speed(measured):.1f} s of audio a second" if requests.elapsed_s else "nothing was answered",
        "wait": _line(requests.latencies_s),
    }
    if load.sessions:
        rows |= {
            "live": live_row + _failures(live.failures, 0),
            "partial lag": _line(live.partials_s),
            "final lag": _line(live.finals_s),
        }
    return "\n".join(f"{name:<14}{value}" for name, value in rows.items())


def _speed(measured: Measurement) -> float:
    return len(measured.requests.latencies_s) * measured.duration_s / measured.requests.elapsed_s


def _ranks(values: Sequence[float]) -> dict[str, float] | None:
    from asr_server_sizing.server_load import rank

    return {name: round(rank(values, share), 4) for name, share in _RANKS.items()} if values else None


def _line(values: Sequence[float]) -> str:
    ranks = _ranks(values)
    return "  ".join(f"{name} {value:.3f} s" for name, value in ranks.items()) if ranks else "none"


def _failures(failures: dict[str, int], unfinished: int) -> str:
    parts = [f"{number} failed ({code})" for code, number in failures.items()]
    parts += [f"{unfinished} unfinished when the time was over"] if unfinished else []
    return "".join(f", {part}" for part in parts)
