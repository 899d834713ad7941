"""The servers and recordings that a run needs, and where they are, as plain data for scenarios in any language."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from E2Etest import recordings
from E2Etest.openai.cases import REFUSALS
from E2Etest.process import SERVE, ServerProcess

_SLOWED = ("-P", str(Path(__file__).parent / "slowed.py"))
_PAUSE = np.zeros(3 * 16_000, np.int16)
# A name with a slash, of a model that is nowhere.
ABSENT = "example/absent"

_SERVERS: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    # English into English asks nobody, so no endpoint has to stand at this address.
    "main": (
        SERVE,
        {
            "MAX_UPLOAD_MB": "4",
            "MAX_AUDIO_S": "120",
            "OPENAI_BASE_URL": "http://127.0.0.1:9/v1",
            "TRANSLATE_MODEL": "nobody",
        },
    ),
    "slow": (_SLOWED, {"SLOWED_STEP_S": "0.05", "MAX_BATCH": "2"}),
    "limited": (
        _SLOWED,
        {"SLOWED_STEP_S": "0.2", "MAX_BATCH": "1", "MAX_QUEUE_AUDIO_S": "8", "REQUEST_TIMEOUT": "4", "PRELOAD": "true"},
    ),
    "absent": (SERVE, {"MODEL_ID": ABSENT, "HF_HUB_OFFLINE": "1"}),
}


@contextmanager
def standing(place: Path) -> Iterator[dict[str, Any]]:
    """Running servers; yields what a scenario is told: addresses, logs, recordings, expected errors.

    main: as a user has it, with small limits. slow: steps of the engine take 50 ms longer. limited: slower still, one
    row at a time, 8 s of audio at once, 4 s a request. absent: its checkpoint does not exist.
    """
    with ExitStack() as stack:
        servers = {}
        for name, (program, settings) in _SERVERS.items():
            folder = place / name  # each server in its own: a server keeps things beside its log
            folder.mkdir()
            servers[name] = ServerProcess(folder / "log", program=program, IDLE_TIMEOUT="0", **settings)
            stack.callback(servers[name].stop)
        # All are told first, then waited for one by one.
        stack.callback(lambda: [server.process.terminate() for server in servers.values()])
        for server in servers.values():
            server.wait_until_live()
        _load(servers)
        yield facts(servers, place)


def facts(servers: Mapping[str, Any], place: Path) -> dict[str, Any]:
    """What a scenario is told. The recordings are written to `place`."""
    return {
        "servers": {name: f"{server.base}/v1" for name, server in servers.items()},
        "health": {name: f"{server.base}/health" for name, server in servers.items()},
        "logs": {name: str(server.log_path) for name, server in servers.items()},
        "absent_model": ABSENT,
        "words": recordings.sample()[1],
        "recordings": {name: str(path) for name, path in _recordings(place).items()},
        "refusals": {r.name: dataclasses.asdict(r) for r in REFUSALS},
    }


def _load(servers: dict[str, ServerProcess]) -> None:
    audio = recordings.sample()[0]
    with ThreadPoolExecutor() as pool:
        for answer in pool.map(lambda name: servers[name].transcribe(audio), ("main", "slow")):
            assert answer.status_code == 200, answer.text
    servers["limited"].wait_for(lambda h: h["model_loaded"])


def _recordings(place: Path) -> dict[str, Path]:
    """`minute` has many spans, `held` is more than the limited server takes at once beside anything else."""
    one = np.concatenate([recordings.samples(), _PAUSE])
    made = {
        "spans": recordings.wav(np.tile(one, 3)),
        "minute": recordings.wav(np.tile(one, 9)),
        "held": recordings.wav(np.tile(one, 2)[: 12 * 16_000]),
        "short": recordings.wav(recordings.samples()[: 16_000 + 3_200]),
        "silence": recordings.wav(np.zeros(32_000, np.int16)),
        "too-long": recordings.wav(np.zeros(130 * 8_000, np.int16), rate=8_000),
        "too-short": recordings.wav(recordings.samples()[:160]),
        "header-only": recordings.wav(np.zeros(0, np.int16)),
        "too-large": bytes(5 * 1024 * 1024),
        "too-large-stream": bytes(40_000_000),
    }
    paths = {"sample": recordings.demo.sample().recording, "chinese": recordings.AUDIO / "zh-00-adam.flac"}
    for name, content in made.items():
        paths[name] = place / f"{name}.wav"
        paths[name].write_bytes(content)
    return paths
