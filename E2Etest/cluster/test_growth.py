"""The number of engine replicas follows the load."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from E2Etest import recordings
from E2Etest.cluster import process
from E2Etest.contract.test_jobs import long_recording

pytestmark = [pytest.mark.nightly, pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(900)]

# One row at a time, of which each takes about a second: 4 s of audio in a second. Two replicas are needed for what one
# does not do within half a minute.
_STEP_S, _SPANS = 0.1, 10
_CALLERS, _DELAY_S = 8, "3"
_PATIENCE_S = 300.0


def test_replicas_come_with_the_load_and_go_with_it(tmp_path):
    """A second one is added and used, and removed when little is left to do, with rows under way. No request fails."""
    audio, text = long_recording(_SPANS), " ".join([recordings.sample()[1]] * _SPANS)
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"step_s": _STEP_S, "rules": [{"text": recordings.sample()[1]}]}), encoding="utf-8")
    settings = {"MODEL_ID": "fake", "FAKE_ENGINE_SCRIPT": str(script), "MAX_BATCH": "1", "MAX_QUEUE_AUDIO_S": "3600"}
    arguments = (
        "--replicas",
        "1",
        "--max-replicas",
        "2",
        "--upscale-delay-s",
        _DELAY_S,
        "--downscale-delay-s",
        _DELAY_S,
    )
    answers, few = [], threading.Event()
    done = threading.Event()

    def call(stays):
        while not done.is_set() and (stays or not few.is_set()):
            answer = cluster.transcribe(audio)
            answers.append((answer.status_code, answer.json().get("text")))

    with process.running(tmp_path / "log", *arguments, **settings) as cluster, ThreadPoolExecutor(_CALLERS) as pool:
        try:
            callers = [pool.submit(call, number == 0) for number in range(_CALLERS)]
            assert len(cluster.processes("engine")) == 1
            cluster.wait_for(lambda health: health["queue"]["running"] == 2, _PATIENCE_S)
            assert len(cluster.processes("engine")) == 2
            few.set()
            cluster.wait_for(lambda _: len(cluster.processes("engine")) == 1, _PATIENCE_S)
            count = len(answers)
            cluster.wait_for(lambda _: len(answers) > count, _PATIENCE_S)
        finally:
            few.set()
            done.set()
        for caller in callers:
            caller.result()
    assert set(answers) == {(200, text)}
