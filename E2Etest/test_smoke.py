"""The real process says what is wrong with its settings and its checkpoint, and writes a log that programs read."""

import json
import shutil

import pytest

from asr_server import demo
from E2Etest.cli.commands import command
from E2Etest.drive.process import running

pytestmark = [pytest.mark.smoke, pytest.mark.integration]


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
def test_every_log_line_is_json(tmp_path, sample, fake_sample):
    """With LOG_JSON each line of every library parses, and that of a request has its times."""
    with running(tmp_path / "log", LOG_JSON="true", LOG_LEVEL="TRACE", **fake_sample) as server:
        server.transcribe(sample[0])
        server.transcribe(b"no sound" * 100)
        rows = [json.loads(line) for line in server.log().splitlines()]
    done = next(row for row in rows if row["message"] == "request" and row.get("audio_s"))
    assert {"id", "method", "route", "status", "outcome", "ms", "queue_ms", "infer_ms"} <= set(done)
    assert any(row["logger"].startswith("uvicorn") for row in rows)


@pytest.mark.nightly
def test_a_wrong_setting_stops_the_start_in_words(tmp_path):
    """Exit code 2, the name, the value and a way out; no traceback."""
    for settings, words in (
        ({"QUANTIZE": "fp8"}, ["QUANTIZE=fp8", "not available"]),
        ({"HOST": "0.0.0.0", "API_KEYS": ""}, ["API_KEYS", "HOST=127.0.0.1", "ALLOW_ANONYMOUS=true"]),
        ({"HOST": "::", "API_KEYS": ""}, ["API_KEYS", "HOST=127.0.0.1", "ALLOW_ANONYMOUS=true"]),
    ):
        done = command("serve", cwd=tmp_path, **{"MODEL_ID": "demo", **settings})
        assert done.returncode == 2, settings
        assert all(word in done.stderr for word in words), done.stderr
        assert "Traceback" not in done.stderr, settings
