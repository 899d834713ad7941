"""`kill -9` to the engine process, or to its server: no word is lost, doubled or taken back, and no process stays."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import numpy as np
import pytest

from E2Etest import recordings
from E2Etest.gateway.workers import kill_worker, wait_until_gone, worker_of
from E2Etest.live.interrupted import kept, laws, spoken, times
from E2Etest.live.session import data
from E2Etest.process import fake_model, ready, running

pytestmark = pytest.mark.integration
URL = "/v1/audio/transcriptions"
NAMES = (
    "bad_input",
    "basics",
    "channels",
    "formats",
    "jobs",
    "live_socket",
    "page",
    "realtime_session",
)
FILES = ["E2Etest/test_surfaces.py", "E2Etest/live/test_invariants.py"]
FILES += [f"E2Etest/contract/test_{name}.py" for name in (*NAMES, "realtime_turns", "subtitles")]
# Tests of these that need a server of their own, whose log they read, which has other limits, or which is new.
NEED_THEIR_OWN = (
    "test_after_all_that_it_still_hears",
    "test_nothing_secret_is_logged",
    "test_a_trace_is_sent_back_and_logged",
    "test_silence_is_an_empty_text_and_costs_no_engine_time",
    "test_a_job_can_be_stopped_and_removed",
    "test_fast_times_are_estimates_and_load_no_aligner",
)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server with the demonstration model in an engine process, which takes one row at a time."""
    with running(tmp_path_factory.mktemp("engine") / "log", ENGINE_PROCESS="true", MAX_BATCH="1") as found:
        found.transcribe(recordings.sample()[0])
        yield found


@pytest.fixture(scope="module")
def long(speech):
    """The bundled recording again and again: a minute and a half, so several spans."""
    return recordings.wav(np.tile(speech, 20))


def _events(server, audio):
    """Return the texts of a stream's deltas, and the text of its end."""
    form = {"model": "whisper-1", "stream": "true", "response_format": "json"}
    with server.client.stream("POST", URL, files={"file": ("a.wav", audio)}, data=form) as answer:
        assert answer.status_code == 200
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line.startswith("data: {")]
    events = [json.loads(line) for line in lines]
    deltas = [event["delta"] for event in events if event["type"] == "transcript.text.delta"]
    return deltas, next(event["text"] for event in events if event["type"] == "transcript.text.done")


@pytest.mark.timeout(600)
def test_a_recording_goes_on_in_the_next_process(server, long):
    """Killed while spans are in the batch: the stream has each word once, and those of a calm one."""
    _, calm = _events(server, long)
    told = []
    reader = threading.Thread(target=lambda: told.append(_events(server, long)))
    reader.start()
    server.wait_for(lambda health: health["queue"]["running"])
    pid = kill_worker(server)
    reader.join()
    deltas, text = told[0]
    assert text == "".join(deltas) == calm
    assert worker_of(server) != pid


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


@pytest.mark.timeout(300)
def test_the_engine_process_ends_with_its_server(tmp_path):
    """However it ends, and in the middle of a row."""
    script = fake_model(tmp_path, live=False, text="word " * 50)
    with running(tmp_path / "log", ENGINE_PROCESS="true", **script) as server:
        asking = threading.Thread(target=_ask, args=(server,))
        asking.start()
        server.wait_for(lambda health: health["queue"]["running"] == 1)
        pid = worker_of(server)
        os.kill(server.process.pid, signal.SIGKILL)
        wait_until_gone(pid)
        asking.join()
        server.process.wait()


def _ask(server):
    with pytest.raises(httpx.TransportError):
        server.transcribe(recordings.sample()[0])


@pytest.mark.timeout(300)
def test_the_server_ends_in_order_with_its_engine_process(tmp_path):
    """SIGTERM drains: the request under way is answered, and both processes are gone."""
    script = fake_model(tmp_path, live=False, text="word " * 10)
    with running(tmp_path / "log", ENGINE_PROCESS="true", **script) as server:
        server.transcribe(recordings.sample()[0])
        pid = worker_of(server)
        answers = []
        asking = threading.Thread(target=lambda: answers.append(server.transcribe(recordings.sample()[0])))
        asking.start()
        server.wait_for(lambda health: health["queue"]["audio_held_s"] > 0)
        server.process.send_signal(signal.SIGTERM)
        asking.join()
        assert answers[0].status_code == 200
        assert server.process.wait(timeout=60) == 0
        wait_until_gone(pid)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.timeout(1_200)
def test_the_tests_of_one_server_pass(tmp_path):
    """Every surface, and in detail bad input, formats, jobs, live and realtime sessions, and the page."""
    unlike = " and ".join(f"not {name}" for name in NEED_THEIR_OWN)
    limits = {"MAX_UPLOAD_MB": "4", "MAX_AUDIO_S": "120"}
    with ready(tmp_path / "log", ENGINE_PROCESS="true", **limits) as server:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:schemathesis", "-k", unlike, *FILES],
            cwd=Path(__file__).parents[1],
            env={**os.environ, "E2E_BASE_URL": server.base, "E2E_DEMO_SERVER": "true"},
            capture_output=True,
            text=True,
            timeout=1_000,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
