"""The servers and recordings that a run needs, and where they are, as plain data for scenarios in any language."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from asr_server.net import event_stream
from asr_server_fake.script import FakeScript
from E2Etest.drive import inprocess, recordings
from E2Etest.drive.process import Server, running
from tools.clients.openai.cases import REFUSALS

_PAUSE = np.zeros(3 * 16_000, np.int16)
# A name with a slash, of a model that is nowhere.
ABSENT = "example/absent"
# A stall of the engine is longer than the pause between two pings of a stream, both short.
PING_S = 0.2
_STALLS = {"stall_every": 10, "stall_s": 0.5}

# main: as a user has it, with small limits. English into English asks nobody, so no endpoint has to stand at this
# address. slow: every step of the engine takes 50 ms. limited: slower still, one row at a time, 8 s of audio at once,
# 4 s a request.
SERVERS: dict[str, dict[str, Any]] = {
    "main": {
        "MAX_UPLOAD_MB": "4",
        "MAX_AUDIO_S": "120",
        "OPENAI_BASE_URL": "http://127.0.0.1:9/v1",
        "TRANSLATE_MODEL": "nobody",
    },
    "slow": {"script": FakeScript(step_s=0.05, **_STALLS), "MAX_BATCH": "2"},
    "limited": {
        "script": FakeScript(step_s=0.2, **_STALLS),
        "MAX_BATCH": "1",
        "MAX_QUEUE_AUDIO_S": "8",
        "REQUEST_TIMEOUT": "4",
        "longest_run_s": 4.0,
        "PRELOAD": "true",
    },
}


@contextmanager
def standing(place: Path) -> Iterator[dict[str, Any]]:
    """Running servers; yields what a scenario is told: addresses, logs, recordings, expected errors.

    main and absent, whose checkpoint does not exist, are processes with a real model. The two whose engine is slow run
    in this process, with the fake engine.
    """
    processes = {"main": SERVERS["main"], "absent": {"MODEL_ID": ABSENT, "HF_HUB_OFFLINE": "1"}}
    inprocess.configure_logging()
    with ExitStack() as stack, mock.patch.object(event_stream, "PING_S", PING_S):
        servers: dict[str, Server] = {}
        for name in ("main", "slow", "limited", "absent"):
            folder = place / name  # each server in its own: a server keeps things beside its log
            folder.mkdir()
            if name in processes:
                servers[name] = stack.enter_context(running(folder / "log", IDLE_TIMEOUT="0", **processes[name]))
            else:
                servers[name] = stack.enter_context(inprocess.running(folder, **SERVERS[name]))
        audio = recordings.sample()[0]
        for name in ("main", "slow"):
            answer = servers[name].transcribe(audio)
            assert answer.status_code == 200, answer.text
        servers["limited"].wait_for(lambda health: health["model_loaded"])
        yield facts(servers, place)


def facts(servers: Mapping[str, Server], place: Path) -> dict[str, Any]:
    """Return the facts that a scenario is told. The recordings are written to `place`."""
    return {
        "servers": {name: f"{server.base}/v1" for name, server in servers.items()},
        "health": {name: f"{server.base}/health" for name, server in servers.items()},
        "logs": {name: str(server.log_path) for name, server in servers.items()},
        "absent_model": ABSENT,
        "words": recordings.sample()[1],
        "recordings": {name: str(path) for name, path in _recordings(place).items()},
        "refusals": {r.name: dataclasses.asdict(r) for r in REFUSALS},
    }


def _recordings(place: Path) -> dict[str, Path]:
    """`minute` has many spans, `held` is more than the limited server takes at once beside anything else. `voice` has
    more than 1 MiB."""
    one = np.concatenate([recordings.samples(), _PAUSE])
    made = {
        "spans": recordings.wav(np.tile(one, 3)),
        "minute": recordings.wav(np.tile(one, 9)),
        "held": recordings.wav(np.tile(one, 2)[: 12 * 16_000]),
        "voice": recordings.riff(
            np.tile(recordings.samples() / 32_768, 3)[: 9 * 16_000].astype("<f8").tobytes(),
            tag=3,
            rate=16_000,
            channels=1,
            bits=64,
        ),
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
