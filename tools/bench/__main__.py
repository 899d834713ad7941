"""`make bench`: every benchmark, one JSON object each, with the machine it ran on."""

from __future__ import annotations

import json
import os
import platform
import sys
from datetime import date

from tools.bench import (
    align,
    causal,
    compiled,
    encoders,
    engine_ab,
    engine_process,
    files,
    live,
    live_speakers,
    live_step,
    long,
    many,
    memory,
    overhead,
    real,
    speakers,
    speech,
    stream,
    turns,
    web_server,
)

BENCHMARKS = {
    "overhead": overhead.measure,
    "memory": memory.measure,
    "engine_ab": engine_ab.measure,
    "engine_process": engine_process.measure,
    "files": files.measure,
    "compiled": compiled.measure,
    "encoders": encoders.measure,
    "causal": causal.measure,
    "long": long.measure,
    "align": align.measure,
    "many": many.measure,
    "stream": stream.measure,
    "turns": turns.measure,
    "live_step": live_step.measure,
    "live_speakers": live_speakers.measure,
    "live": live.measure,
    "real": real.measure,
    "speakers": speakers.measure,
    "speech": speech.measure,
    "speech_voices": speech.measure_voices,
    "web_server": web_server.measure,
}


def main(names: list[str]) -> None:
    """Run the named benchmarks, or all."""
    machine = {"date": date.today().isoformat(), "cpus": os.cpu_count(), "python": platform.python_version()}
    for name in names or BENCHMARKS:
        print(json.dumps({"benchmark": name, **machine, **BENCHMARKS[name]()}, indent=2), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
