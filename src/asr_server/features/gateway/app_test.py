"""What the gateway's app refuses and answers itself, without a worker."""

import asyncio
import subprocess
import sys
import threading
import time

import pytest
from starlette.testclient import TestClient, WebSocketDenialResponse

from asr_server.core.settings import Settings
from asr_server.features.gateway import app as gateway
from asr_server.features.gateway.app import _log_loop_error, create_app
from asr_server.features.gateway.conftest import answer
from asr_server.features.gateway.restart_policy import WorkerState
from asr_server.jobs.record import FollowUp, FollowUpState, JobRecord, RecordFormat, RecordState, new_id
from asr_server.layers_test import HEAVY
from asr_server.recordings.requests import TranscriptionRequest

KEYS = "sk-first,sk-second"


@pytest.fixture
def app(monkeypatch):
    """With keys; no worker can be started."""

    async def spawn(path):
        raise FileNotFoundError("no such program")

    monkeypatch.setattr(gateway, "spawner", lambda _: spawn)
    return create_app(Settings(_env_file=None, model_id="demo", gateway_mode=True, api_keys=KEYS))


@pytest.fixture
def client(app):
    """On a name of this machine's, as a browser here would."""
    return TestClient(app, base_url="http://127.0.0.1")


@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer sk-no"}, {"authorization": "Bearer ek_no"}])
def test_a_caller_without_a_key_starts_no_worker(app, client, headers):
    """Its requests are refused, those that the gateway answers itself too."""
    for path in ("/health", "/metrics", "/v1/models", "/v1/jobs/x", "/nowhere"):
        assert client.get(path, headers=headers).status_code == 401
    refused = client.post("/v1/audio/transcriptions", headers=headers, files={"file": b"x"})
    assert refused.status_code == 401
    assert refused.headers["x-request-id"]
    for path in ("/ws/transcribe", "/ws/speech", "/v1/realtime?intent=transcription"):
        with pytest.raises(WebSocketDenialResponse) as denied, client.websocket_connect(path, headers=headers):
            pass
        assert denied.value.status_code == 401
    assert app.state.worker.state is WorkerState.STOPPED


def test_what_needs_no_key_to_be_read_starts_no_worker(app, client):
    """A link ends with the worker that has its session."""
    answer = client.get("/v1/live/shared/token/events")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "session_not_found")
    assert client.get("/captions").status_code == 200
    assert app.state.worker.state is WorkerState.STOPPED


def test_a_worker_starts_for_the_jobs_of_other_servers(gateway_with, monkeypatch):
    """Once one waits in the database that they share, and not before."""
    asked, waits = [], threading.Event()

    async def work_waits(url):
        asked.append(url)
        return waits.is_set()

    monkeypatch.setattr(gateway.database, "work_waits", work_waits)
    monkeypatch.setattr(gateway, "_LOOK_FOR_JOBS_S", 0.01)
    worker = gateway_with(jobs_database_url="postgresql://db/asr").worker
    while len(asked) < 3:
        time.sleep(0.01)
    assert worker.starts == 0
    waits.set()
    while not worker.starts:
        time.sleep(0.01)
    assert set(asked) == {"postgresql://db/asr"}


@pytest.mark.parametrize(("state", "starts"), [(FollowUpState.WAITING, 1), (FollowUpState.DONE, 0)])
def test_a_worker_starts_for_the_request_of_an_ended_job(gateway_with, tmp_path, state, starts):
    """An earlier server ended the job, and died before the request was sent."""
    asked = (FollowUp("callback_url", "https://example.com/", state),)
    job = JobRecord(new_id(), TranscriptionRequest(), 1.0, RecordState.FAILED, ended_at=2.0, follow_ups=asked)
    folder = tmp_path / "jobs" / job.id
    folder.mkdir(parents=True)
    (folder / "job.json").write_bytes(RecordFormat([TranscriptionRequest]).dumped(job))
    worker = gateway_with(state_dir=tmp_path).worker
    give_up_s = time.monotonic() + 20
    while worker.starts < starts:
        assert time.monotonic() < give_up_s
        time.sleep(0.01)
    assert worker.starts == starts


def test_what_needs_no_key_starts_no_worker(app, client):
    """Probes by another method are answered here, and paths that are no files of the page are refused."""
    for method, path, status in [
        ("HEAD", "/livez", 200),
        ("OPTIONS", "/", 204),
        ("POST", "/readyz", 405),
        ("POST", "/", 401),
        ("GET", "/web/", 401),
        ("GET", "/web/a/b", 401),
        ("HEAD", "/web/%2e%2e/v1/jobs", 401),
    ]:
        assert client.request(method, path).status_code == status, (method, path)
    assert (app.state.worker.state, app.state.worker.starts) == (WorkerState.STOPPED, 0)


def test_no_socket_opens_without_a_key(app, client):
    """Also where a request needs none."""
    for path in ("/livez", "/readyz", "/", "/web/app.js"):
        with pytest.raises(WebSocketDenialResponse) as denied, client.websocket_connect(path):
            pass
        assert denied.value.status_code == 401, path
    assert (app.state.worker.state, app.state.worker.starts) == (WorkerState.STOPPED, 0)


def test_its_own_routes_are_its_own_for_every_method(app, client):
    """A monitor that asks with HEAD starts no worker either."""
    for path in ("/health", "/metrics", "/v1/models", "/v1/models/demo", "/v1/audio/voices", "/v1/audio/speech/voices"):
        for method, status in (("HEAD", 200), ("POST", 405), ("DELETE", 405)):
            assert client.request(method, path, headers={"api-key": "sk-first"}).status_code == status, (method, path)
    assert (app.state.worker.state, app.state.worker.starts) == (WorkerState.STOPPED, 0)


def test_models_that_speak_are_named_without_a_worker(app, client):
    """With what they are for, in the list and alone."""
    key = {"api-key": "sk-first"}
    tasks = {model["id"]: model["task"] for model in client.get("/v1/models", headers=key).json()["data"]}
    assert (tasks["demo"], tasks["tts-1"]) == ("automatic-speech-recognition", "text-to-speech")
    assert client.get("/v1/models/espeak", headers=key).json()["task"] == "text-to-speech"
    assert (app.state.worker.state, app.state.worker.starts) == (WorkerState.STOPPED, 0)


def test_probes_and_the_page_need_no_key(client):
    """As without a gateway."""
    assert [client.get(path).status_code for path in ("/livez", "/readyz", "/", "/web/app.js")] == [200] * 4


def test_its_own_answers_need_one(client):
    """Any key on the ring."""
    for key in KEYS.split(","):
        assert client.get("/health", headers={"api-key": key}).json()["mode"] == "gateway"


def test_pages_of_other_sites_are_held_off(client):
    """By origin and, without keys, by the name that was called."""
    foreign = {"origin": "http://evil.example", "api-key": "sk-first"}
    assert client.post("/v1/audio/transcriptions", headers=foreign).status_code == 403
    keyless = create_app(Settings(_env_file=None, model_id="demo", gateway_mode=True))
    assert TestClient(keyless, base_url="http://evil.example").get("/health").status_code == 403


def test_without_a_worker_the_limits_are_those_of_the_settings():
    """Each its own: of an upload, of a recording and of a text."""
    settings = Settings(_env_file=None, model_id="demo", gateway_mode=True, max_audio_s=1_002, max_speech_chars=1_003)
    told = TestClient(create_app(settings), base_url="http://127.0.0.1").get("/health").json()["limits"]
    assert told == {
        "upload_bytes": settings.max_upload_bytes,
        "audio_s": 1_002,
        "text_chars": 1_003,
        "request_s": 300.0,
    }


@pytest.mark.parametrize("is_there", [True, False])
def test_a_worker_starts_at_once_for_jobs_that_an_earlier_one_left(gateway_with, tmp_path, is_there):
    """Nobody has to ask for them."""
    if is_there:
        (tmp_path / "jobs" / "job_1").mkdir(parents=True)
        (tmp_path / "jobs" / "job_1" / "recording").touch()
    client = gateway_with()
    for _ in range(500 if is_there else 10):
        if client.worker.starts:
            break
        time.sleep(0.01)
    assert client.worker.starts == is_there


def test_work_is_taken_while_load_balancers_notice_that_the_server_ends(workers, gateway_with):
    """The gateway is unready from the beginning, and refuses only when that time is over."""

    async def answered(process, request, send):
        await answer(send, 200, b"done")

    workers.on_request = answered
    client = gateway_with(drain_delay_s=0.5)
    assert client.post("/v1/audio/transcriptions", content=b"x").text == "done"
    drained = client.portal.start_task_soon(client.drain)
    while not client.worker.draining:
        time.sleep(0.005)
    assert client.get("/readyz").json()["reason"] == "draining"
    assert client.get("/health").json()["status"] == "draining"
    assert client.post("/v1/audio/transcriptions", content=b"x").text == "done"
    drained.result(timeout=30)
    assert client.post("/v1/audio/transcriptions", content=b"x").json()["error"]["code"] == "shutting_down"


def test_what_a_worker_counted_since_the_last_scrape_is_not_lost_when_it_sleeps(workers, gateway_with):
    """The worker is asked once more before it is ended for idleness."""
    counted = [1.0]

    async def answered(process, request, send):
        text = f"# HELP asr_things_total Things.\n# TYPE asr_things_total counter\nasr_things_total {counted[0]}\n"
        await answer(send, 200, text.encode() if request.path == "/metrics" else b"done")

    workers.on_request = answered
    client = gateway_with(idle_timeout=0.3)
    assert client.post("/v1/audio/transcriptions", content=b"x").text == "done"
    assert "asr_things_total 1.0" in client.get("/metrics").text
    counted[0] = 5.0
    for _ in range(1_000):
        if client.worker.state is WorkerState.STOPPED:
            break
        time.sleep(0.01)
    assert "asr_things_total 5.0" in client.get("/metrics").text


def test_a_worker_may_load_for_as_long_as_a_request_may_take():
    """And hang for no longer than the setting says."""
    values = {"model_id": "demo", "gateway_mode": True, "worker_hang_s": 20, "request_timeout": 300}
    config = gateway._hang_config(Settings(_env_file=None, **values))
    assert (config.hang_s, config.load_s) == (20, 300)


async def test_a_result_that_nobody_waits_for_any_more_is_no_error(caplog):
    """The loop logs every other fault of a callback, also one of the same kind."""

    def broken():
        raise asyncio.InvalidStateError

    loop = asyncio.get_running_loop()
    loop.set_exception_handler(_log_loop_error)
    cancelled = loop.create_future()
    cancelled.cancel()
    loop.call_soon(cancelled.set_result, None)
    await asyncio.sleep(0)
    assert caplog.text == ""
    loop.call_soon(broken)
    await asyncio.sleep(0)
    assert "broken" in caplog.text


def test_it_imports_nothing_heavy():
    """No model library and no numpy: a gateway without its worker takes little memory."""
    heavy = (*HEAVY, "numpy")
    code = f"import sys, {gateway.__name__}; print([m for m in {heavy!r} if m in sys.modules])"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "[]"
