"""Load, unload, time limits, overload, disconnects, shutdown: on servers of their own."""

import json
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from asr_server import demo
from E2Etest import recordings
from E2Etest.process import ServerProcess, running

pytestmark = pytest.mark.integration

LOADED = '"state": "loaded"'


def test_two_first_requests_load_once(tmp_path, sample):
    """Eight callers that come first all get their words, from one load."""
    with running(tmp_path / "log", LOG_JSON="true") as server:
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda _: server.transcribe(sample[0]), range(8)))
        assert [a.json()["text"] for a in answers] == [sample[1]] * 8
        assert server.log().count(LOADED) == 1


def test_an_idle_model_is_unloaded_and_comes_back(tmp_path, sample):
    """After IDLE_TIMEOUT the model is gone and its memory is smaller; the next request is answered."""
    with running(tmp_path / "log", IDLE_TIMEOUT="0.5") as server:
        assert server.transcribe(sample[0]).json()["text"] == sample[1]
        server.wait_for(lambda h: not h["model_loaded"])
        assert server.health()["status"] == "ok"
        assert server.transcribe(sample[0]).json()["text"] == sample[1]


def test_preload_is_before_ready(tmp_path, sample):
    """With PRELOAD the server is live at once, and ready when the model has run."""
    with running(tmp_path / "log", PRELOAD="true") as server:
        first = server.client.get("/readyz")
        assert (first.status_code, first.json()["reason"]) == (503, "the model is being loaded")
        server.wait_for(lambda _: server.client.get("/readyz").status_code == 200, timeout_s=120)
        assert server.health()["model_loaded"]


def test_a_missing_checkpoint_is_told_and_tried_again(tmp_path, sample):
    """503 with what to do while it is absent or incomplete; once it is there, the next request is served."""
    place = tmp_path / "model"
    with running(tmp_path / "log", MODEL_ID=str(place)) as server:

        def refusal():
            answer = server.transcribe(sample[0], model="whisper-1")
            assert answer.status_code == 503
            assert 1 <= int(answer.headers["retry-after"]) <= 60
            assert answer.json()["error"]["code"] == "model_unavailable"
            return answer.json()["error"]["message"]

        assert "no such directory" in refusal()
        assert server.health()["status"] == "degraded"
        shutil.copytree(demo.checkpoint_path(), place)
        (place / "model.safetensors").rename(place / "gone")
        assert "incomplete" in refusal()
        (place / "config.json").write_text(json.dumps({"model_type": "whisper"}))
        assert "whisper" in refusal()
        shutil.rmtree(place)
        shutil.copytree(demo.checkpoint_path(), place)
        answer = server.transcribe(sample[0], model="whisper-1")
        assert answer.json()["text"] == sample[1]
        assert server.health()["status"] == "ok"


def test_a_deadline_hurts_only_its_own_request(tmp_path, sample):
    """A request that cannot be done in time gets 504; the load it started goes on, and the next one is served."""
    with running(tmp_path / "log", REQUEST_TIMEOUT="0.6") as server:
        late = server.transcribe(sample[0])
        assert (late.status_code, late.json()["error"]["code"]) == (504, "deadline_exceeded")
        server.wait_for(lambda h: h["model_loaded"], timeout_s=120)
        assert server.transcribe(sample[0]).json()["text"] == sample[1]


def test_a_full_server_refuses_at_once_and_says_when(tmp_path, sample):
    """Over MAX_QUEUE_AUDIO_S: 429 with Retry-After; what was accepted is answered."""
    with running(tmp_path / "log", MAX_QUEUE_AUDIO_S="8") as server, ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda _: server.transcribe(sample[0]), range(12)))
        codes = {a.status_code for a in answers}
        assert codes == {200, 429}
        for answer in answers:
            if answer.status_code == 429:
                assert answer.json()["error"]["code"] == "rate_limit_exceeded"
                assert 1 <= int(answer.headers["retry-after"]) <= 60
            else:
                assert answer.json()["text"] == sample[1]


def test_sigterm_answers_what_was_accepted(tmp_path, sample):
    """A request under way when the server is told to stop gets its words; the exit code is 0."""
    server = ServerProcess(tmp_path / "log")
    try:
        server.wait_until_live()
        with ThreadPoolExecutor(1) as pool:
            work = pool.submit(server.transcribe, sample[0])
            time.sleep(0.5)
            server.process.terminate()
            assert work.result().json()["text"] == sample[1]
    finally:
        assert server.stop() == 0


def test_every_log_line_is_json_and_none_holds_what_was_said(tmp_path, sample):
    """With LOG_JSON each line of every library parses; words, prompts and file names are not in it."""
    with running(tmp_path / "log", LOG_JSON="true", LOG_LEVEL="TRACE") as server:
        server.transcribe(sample[0], name="canary-name.wav", prompt="canary-prompt")
        server.transcribe(b"canary-bytes" * 100, name="canary-name.wav")
        server.client.get("/canary-path")
        lines = server.log().splitlines()
    rows = [json.loads(line) for line in lines]
    requests = [row for row in rows if row["message"] == "request"]
    done = next(row for row in requests if row.get("audio_s"))
    assert {"id", "method", "route", "status", "outcome", "ms", "queue_ms", "infer_ms"} <= set(done)
    assert any(row["logger"].startswith("uvicorn") for row in rows)
    text = "\n".join(lines)
    assert "canary" not in text
    assert sample[1] not in text


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"PORT": "http"}, ["PORT", "http"]),
        ({"USE_VLLM": "true"}, ["USE_VLLM", "not available"]),
        ({"DEVICE": "cuda"}, ["DEVICE=cuda"]),
    ],
)
def test_a_wrong_setting_stops_the_start_in_words(tmp_path, settings, words):
    """Exit code 2, the name, the value and a way out; no traceback."""
    import os

    done = subprocess.run(
        [sys.executable, "-m", "asr_server", "serve"],
        env={**os.environ, "MODEL_ID": "demo", **settings},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert all(word in done.stderr for word in words)
    assert "Traceback" not in done.stderr


def test_a_long_recording_is_cut_at_pauses_and_joined(server):
    """Speech, a long pause, speech: spans without the pause, in order, and the words of both."""
    pcm = recordings.samples()
    said = recordings.sample()[1]
    pause = np.zeros(16_000 * 20, np.int16)
    audio = recordings.wav(np.concatenate([pcm, pause, pcm, pause, pcm]))
    body = server.transcribe(audio, response_format="verbose_json").json()
    assert body["text"] == " ".join([said] * 3)
    assert len(body["segments"]) == 3
    starts = [segment["start"] for segment in body["segments"]]
    assert starts == sorted(starts)
    spoken_s = sum(segment["end"] - segment["start"] for segment in body["segments"])
    assert spoken_s < body["duration"] - 35
