"""`kill -9` to the engine process, or to its server: no word is lost, doubled or taken back, and no process stays."""

import os
import re
import signal
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest

from E2Etest.drive import recordings
from E2Etest.drive.process import events, fake_model, ready, refusal, running, until
from E2Etest.drive.procfs import engine_of, kill_engine, wait_until_gone
from E2Etest.drive.session import data
from E2Etest.live.interrupted import kept, laws, spoken, times

pytestmark = pytest.mark.integration
NAMES = ("basics", "conversations", "jobs", "realtime")
FILES = ["E2Etest/test_surfaces.py", "E2Etest/live/test_invariants.py"]
FILES += [f"E2Etest/contract/test_{name}.py" for name in NAMES]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server with the demonstration model in an engine process, which takes one row at a time."""
    with running(tmp_path_factory.mktemp("engine") / "log", ENGINE_PROCESS="true", MAX_BATCH="1") as found:
        found.transcribe(recordings.sample()[0])
        yield found


@pytest.fixture(scope="module")
def long(speech):
    """The bundled recording again and again, so several spans."""
    return recordings.wav(np.tile(speech, 10))


def _events(server, audio):
    """Return the texts of a stream's deltas, and the text of its end."""
    answer = server.transcribe(audio, stream="true", response_format="json")
    assert answer.status_code == 200
    sent = events(answer)
    deltas = [event["delta"] for event in sent if event["type"] == "transcript.text.delta"]
    return deltas, next(event["text"] for event in sent if event["type"] == "transcript.text.done")


@pytest.mark.slow("starts a server and its engine process")
@pytest.mark.timeout(600)
def test_a_recording_goes_on_in_the_next_process(server, long):
    """Killed while spans are in the batch: the stream has each word once, and those of a calm one."""
    _, calm = _events(server, long)
    with ThreadPoolExecutor(1) as pool:
        told = pool.submit(_events, server, long)
        server.wait_for(lambda health: health["queue"]["running"])
        pid = kill_engine(server)
        deltas, text = told.result()
    assert text == "".join(deltas) == calm
    assert engine_of(server) != pid


@pytest.mark.slow("starts a server and its engine process")
@pytest.mark.websocket
@pytest.mark.timeout(600)
def test_a_live_session_goes_on_in_the_next_process(server, speech):
    """Killed in a word, between utterances and twice in a row: committed words stay, and finals are those of a calm
    session, at the same times."""
    talk = data(np.concatenate([speech, speech, speech]))
    calm = spoken(server, talk, ())
    assert len([message for message in calm if message["is_final"] and message["text"]]) == 3
    messages = spoken(server, talk, {25, 60, 61, 100})
    laws(messages)
    assert kept(messages) == kept(calm)
    assert np.array_equal(times(messages), times(calm))


@pytest.mark.slow("starts a server and its engine process")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM])
def test_the_engine_process_ends_with_its_server(tmp_path, ending):
    """However it ends, and in the middle of a row. SIGTERM drains: the request under way is answered."""
    script = fake_model(tmp_path, live=False, text="word " * 50)
    with running(tmp_path / "log", ENGINE_PROCESS="true", **script) as server, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(server.transcribe, recordings.sample()[0])
        server.wait_for(lambda health: health["queue"]["running"] == 1)
        pid = engine_of(server)
        server.process.send_signal(ending)
        wait_until_gone(pid)
        if ending is signal.SIGTERM:
            assert asked.result().status_code == 200
            assert server.process.wait(timeout=60) == 0
        else:
            with pytest.raises(httpx.TransportError):
                asked.result()


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_a_job_and_subtitles_go_on_in_the_next_process(server, long):
    """A job, and word times by the aligner: killed in the middle of each, they have the words of a calm run."""
    calm = server.transcribe(long, response_format="srt").text
    with ThreadPoolExecutor(2) as pool:
        job = pool.submit(server.job, long, response_format="srt")
        server.wait_for(lambda health: health["queue"]["running"])
        kill_engine(server)
        whole = pool.submit(server.transcribe, long, response_format="srt")
        server.wait_for(lambda health: health["aligner_state"] == "loaded")
        kill_engine(server)
        state, result = job.result()
        assert (state["status"], result.text, whole.result().text) == ("succeeded", calm, calm)


@pytest.fixture(params=[("demo", 20), ("fake", 180)], ids=lambda param: param[0])
def killable(request, server, tmp_path, sample):
    """A server, and how often its engine process is killed: in the night a fourth of what the guarantee says. The fake
    engine loads in no time."""
    model, kills = request.param
    kills = kills if request.config.getoption("guarantees") else kills // 4
    if model == "demo":
        yield server, kills
    else:
        scripted = fake_model(tmp_path, script={"load_s": 0.0}, text=sample[1])
        with running(tmp_path / "log", ENGINE_PROCESS="true", **scripted) as found:
            yield found, kills


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.guarantee("crash")
@pytest.mark.timeout(1_800)
def test_under_load_every_request_gets_its_words(killable, sample, measured, note):
    """Kills under four callers, each of a process that has answered all of them: a request that ended three processes
    is failed, as it may be the cause. The server is ready all the time."""
    (server, kills), stop, seen, away_s = killable, False, [], []

    def call(number):
        while not stop:
            answer = server.transcribe(sample[0])
            seen.append((number, answer.status_code, answer.json().get("text")))

    def await_words(before, count):
        while len({number for number, *answer in seen[before:] if answer == [200, sample[1]]}) < count:
            assert not any(caller.done() for caller in callers)
            time.sleep(0.02)

    with ThreadPoolExecutor(4) as pool:
        callers = [pool.submit(call, number) for number in range(4)]
        try:
            await_words(0, 4)
            known_loads = len(_took_s(server))
            for _ in range(kills):
                wait_until_gone(kill_engine(server))
                died_s, before = time.monotonic(), len(seen)
                assert server.client.get("/readyz").status_code == 200
                await_words(before, 1)
                away_s.append(time.monotonic() - died_s)
                await_words(before, 4)
        finally:
            stop = True
        for caller in callers:
            caller.result()
    assert {tuple(answer) for _, *answer in seen} == {(200, sample[1])}
    load_s, again_s = statistics.median(_took_s(server)[known_loads:]), statistics.median(away_s)
    measured("recovery_s", again_s - load_s)
    note(
        f"{kills} kills, {len(seen)} requests, all answered; next transcript after {again_s:.1f} s (median; slowest "
        f"{max(away_s):.1f} s), of which loading takes {load_s:.1f} s"
    )


def _took_s(server, what="state=loaded"):
    """Return how long every load of the model, or `what`, took so far."""
    return [float(took_s) for took_s in re.findall(rf"{what} .*?took_s=([\d.]+)", server.log())]


@pytest.mark.nightly
@pytest.mark.guarantee("crash")
@pytest.mark.timeout(300)
def test_a_process_that_does_not_stay_up_is_given_up_and_tried_again_later(tmp_path, sample, note, fake_sample):
    """Killed as soon as it is there, again and again: 503 with a stable code at once, which the probes name; after a
    rest requests are served."""
    with running(tmp_path / "log", ENGINE_PROCESS="true", **fake_sample) as server, ThreadPoolExecutor(1) as pool:
        work = pool.submit(server.transcribe, sample[0])
        while not work.done():
            if engine_of(server) is not None:
                kill_engine(server)
            time.sleep(0.005)
        answer = work.result()
        assert refusal(answer)[:2] == (503, "engine_failed")
        assert "log" in answer.json()["error"]["message"]
        assert 1 <= int(answer.headers["retry-after"]) <= 60
        assert server.client.get("/livez").json()["reason"] == "The engine process does not stay up; the log says why."
        until(lambda: server.client.get("/livez").status_code == 200)  # the next process is there, after a rest of 10 s
        assert server.transcribe(sample[0]).json()["text"] == sample[1]
        note(f"gave up after {server.log().count('engine process ended')} crashes in a row and tried again 10 s later")


@pytest.mark.nightly
@pytest.mark.performance
@pytest.mark.guarantee("idle-memory")
@pytest.mark.timeout(300)
def test_in_gateway_mode_an_idle_engine_gives_all_its_memory_back(tmp_path, sample, measured, note):
    """Health, probes and models do not start its process; the next request is answered."""
    with running(tmp_path / "log", GATEWAY_MODE="true", IDLE_TIMEOUT="1") as server:
        asleep = server.health()
        assert (asleep["mode"], asleep["model_loaded"]) == ("gateway", False)
        assert [server.client.get(path).status_code for path in ("/livez", "/readyz", "/v1/models")] == [200] * 3
        assert engine_of(server) is None
        fresh_mb = server.resident_mb()
        for _ in range(2):
            answer = server.transcribe(sample[0])
            assert answer.json()["text"] == sample[1]
            pid, loaded_mb = engine_of(server), server.resident_mb()
            assert server.health()["model_loaded"] is True
            wait_until_gone(pid)
            assert server.client.get("/readyz").status_code == 200
            measured("idle_mb", server.resident_mb())
        took_s = answer.elapsed.total_seconds()
        process_s, load_s = (_took_s(server, what)[-1] for what in ("engine process ready", "state=loaded"))
    measured("wake_s", took_s - load_s)
    note(f"server and engine process: {fresh_mb:.0f} MB at the start, {loaded_mb:.0f} MB with the model")
    note(
        f"first request after a sleep: {took_s:.1f} s, of which loading takes {load_s:.1f} s and starting the process "
        f"{process_s:.1f} s"
    )


@pytest.mark.guarantee("idle-memory")
def test_a_server_alone_is_small_until_its_first_request(tmp_path, measured):
    """All processes of it, after looks at its page, its state and its metrics. No model is loaded for them."""
    with running(tmp_path / "log") as server:
        for path in ("/", "/health", "/livez", "/readyz", "/metrics", "/v1/models"):
            assert server.client.get(path).status_code == 200
        health = server.health()
        assert (health["status"], health["mode"], health["model_loaded"]) == ("ok", "standalone", False)
        measured("fresh_mb", server.resident_mb())


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.timeout(1_200)
def test_the_tests_of_one_server_pass(tmp_path):
    """Every surface, and in detail bad input, formats, jobs, live and realtime sessions."""
    limits = {"MAX_UPLOAD_MB": "4", "MAX_AUDIO_S": "120"}
    with ready(tmp_path / "log", ENGINE_PROCESS="true", **limits) as server:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:schemathesis", "-k", "not frees_what_it_runs", *FILES],
            cwd=Path(__file__).parents[1],
            env={**os.environ, "E2E_BASE_URL": server.base, "E2E_DEMO_SERVER": "true"},
            capture_output=True,
            text=True,
            timeout=1_000,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
