"""The real process starts light, says what is wrong with its settings, and writes a log that says nothing private."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from asr_server import demo
from E2Etest.drive.process import ServerProcess, running

pytestmark = [pytest.mark.smoke, pytest.mark.integration]


@pytest.mark.performance
def test_health_answers_before_any_model_and_the_process_is_small(tmp_path):
    """A fresh process reports its state with the model unloaded, in under 80 MB resident, children included."""
    server = ServerProcess(tmp_path / "log")
    try:
        server.wait_until_live()
        health = server.health()
        assert (health["status"], health["mode"], health["model_id"]) == ("ok", "standalone", "demo")
        assert health["model_loaded"] is False
        assert server.client.get("/readyz").status_code == 200
        assert server.resident_mb() < 80
    finally:
        assert server.stop() == 0


@pytest.mark.nightly
def test_a_missing_checkpoint_is_reported_and_tried_again(tmp_path, sample):
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


@pytest.mark.slow("starts a server")
def test_every_log_line_is_json_and_none_holds_what_was_said(tmp_path, sample, fake_sample):
    """With LOG_JSON each line of every library parses; words, prompts and file names are not in it."""
    with running(tmp_path / "log", LOG_JSON="true", LOG_LEVEL="TRACE", **fake_sample) as server:
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


@pytest.mark.nightly
def test_a_wrong_setting_stops_the_start_in_words(tmp_path):
    """Exit code 2, the name, the value and a way out; no traceback."""
    for settings, words in (
        ({"PORT": "http"}, ["PORT", "http"]),
        ({"QUANTIZE": "fp8"}, ["QUANTIZE=fp8", "not available"]),
        ({"DEVICE": "cuda"}, ["DEVICE=cuda"]),
        ({"HOST": "0.0.0.0", "API_KEYS": ""}, ["API_KEYS", "HOST=127.0.0.1", "ALLOW_ANONYMOUS=true"]),
        ({"HOST": "::", "API_KEYS": ""}, ["API_KEYS", "HOST=127.0.0.1", "ALLOW_ANONYMOUS=true"]),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "asr_server", "serve"],
            env={**os.environ, "MODEL_ID": "demo", **settings},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 2, settings
        assert all(word in done.stderr for word in words), done.stderr
        assert "Traceback" not in done.stderr, settings
