"""What clients see of a cluster is what they see of one server, and an engine replica may end."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from asr_server.client.live import LiveClient
from E2Etest import recordings
from E2Etest.chaos.procfs import cpu_s

pytestmark = [pytest.mark.nightly, pytest.mark.integration, pytest.mark.timeout(900)]

_PATIENCE_S = 60.0
_FRAME = 3_200


def _long(samples, times):
    """A recording said several times, with pauses in which spans are cut."""
    return recordings.wav(np.concatenate([samples] * times))


def test_recordings_have_the_text_of_one_server(cluster, server):
    """Clips in several languages, and a recording of many spans; both replicas work on it."""
    clips = [clip.path.read_bytes() for clip in recordings.clips()[:6]]
    talk = _long(np.concatenate([recordings.samples(), np.zeros(16_000, np.int16)]), 12)
    before = {pid: cpu_s(pid) for pid in cluster.processes("engine")}
    assert len(before) == 2
    for audio in (*clips, talk):
        assert cluster.transcribe(audio).json()["text"] == server.transcribe(audio).json()["text"]
    spent = [cpu_s(pid) - seconds for pid, seconds in before.items()]
    assert min(spent) > sum(spent) / 12  # which of them gets more is a matter of chance on a busy machine


def test_word_times_are_those_of_one_server(cluster, server):
    """The aligner runs in the replicas."""
    audio, _ = recordings.sample()
    fields = {"response_format": "verbose_json", "timestamp_granularities[]": "word"}
    ours, theirs = (one.transcribe(audio, **fields).json()["words"] for one in (cluster, server))
    assert ours == theirs
    assert len(ours) > 3


def test_openais_client_streams(cluster):
    """The official client, with deltas that add up to the text."""
    audio, text = recordings.sample()
    client = cluster.openai()
    with client.audio.transcriptions.create(file=("a.wav", audio), model="whisper-1", stream=True) as stream:
        events = list(stream)
    deltas = [event.delta for event in events if event.type == "transcript.text.delta"]
    assert "".join(deltas) == events[-1].text
    assert recordings.plain_words(events[-1].text) == recordings.plain_words(text)


def test_a_live_session_has_partials_and_its_final(cluster, speech):
    """Through Ray Serve's proxy."""
    lines = _say(cluster, speech, pace_s=0.05)
    assert any(not line.final for line in lines)
    final = [line.text for line in lines if line.final and line.text]
    assert recordings.plain_words(" ".join(final)) == recordings.plain_words(recordings.sample()[1])


def test_what_is_wrong_is_refused_as_by_one_server(cluster):
    """With the code of the error."""
    answer = cluster.transcribe(b"not audio")
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_audio")


def test_a_request_id_comes_back_once(cluster):
    """The proxy answers with it, and the app does not as well."""
    answer = cluster.client.get("/health", headers={"X-Request-ID": "caller-7"})
    assert answer.headers.get_list("x-request-id") == ["caller-7"]


@pytest.mark.parametrize("knows_the_token", [True, False])
def test_ray_takes_only_who_has_its_token(cluster, tmp_path, knows_the_token):
    """It is in the home directory of who started the cluster."""
    address = re.search(r"ray status --address (\S+)", cluster.log()).group(1)
    environment = {**os.environ, "RAY_AUTH_MODE": "token", **({} if knows_the_token else {"HOME": str(tmp_path)})}
    script = f"import ray; ray.init({address!r}); print('joined')"
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert ("joined" in done.stdout) is knows_the_token, done.stderr
    assert knows_the_token or "token" in done.stderr.lower()


def test_health_shows_the_slots_of_all_replicas(cluster):
    """And the option of the cluster."""
    health = cluster.wait_for(lambda health: health["slots"] == 16)
    assert (health["model_loaded"], health["mode"]) == (True, "cluster")
    (option,) = [option for option in health["plan"] if option["name"] == "cluster"]
    assert (option["active"], option["value"]) == (True, "2")


def test_an_engine_replica_is_killed_under_load(cluster, speech, record_property):
    """kill -9: every recording that was accepted is answered with all its words, and every live session goes on."""
    words = recordings.plain_words(recordings.sample()[1])
    talk = _long(np.concatenate([recordings.samples(), np.zeros(16_000, np.int16)]), 12)
    long_speech = np.concatenate([speech] * 6)
    expected, pauses = cluster.transcribe(talk).json()["text"], []

    def listen():
        lines = _say(cluster, long_speech, pace_s=0.1, pauses=pauses)
        return [word for line in lines if line.final for word in recordings.plain_words(line.text)]

    with ThreadPoolExecutor(8) as pool:
        files = [pool.submit(cluster.transcribe, talk) for _ in range(4)]
        sessions = [pool.submit(listen) for _ in range(3)]
        cluster.wait_for(lambda health: health["queue"]["running"] >= 5, _PATIENCE_S)
        before = cluster.processes("engine")
        os.kill(before[0], signal.SIGKILL)
        killed_s = time.monotonic()
        for session in sessions:
            assert session.result() == 6 * words
        for file in files:
            assert file.result().status_code == 200
            assert file.result().json()["text"] == expected
    assert "a row is sent to another replica" in cluster.log()
    record_property("longest_pause_s", max(after_s - max(killed_s, s) for s, after_s in pauses if after_s > killed_s))
    give_up_s = time.monotonic() + 4 * _PATIENCE_S
    while len(after := cluster.processes("engine")) < 2 or before[0] in after:  # Ray Serve starts another one
        assert time.monotonic() < give_up_s, cluster.log()
        time.sleep(0.2)


def _say(cluster, samples, *, pace_s, pauses=None):
    """All lines of a session that is sent `samples`, `_FRAME` of them at a time, and then ended."""
    with LiveClient(cluster.base) as client:

        def send():
            for at in range(0, len(samples), _FRAME // 2):
                client.send(samples[at : at + _FRAME // 2].tobytes())
                time.sleep(pace_s)
            client.flush()

        sender = threading.Thread(target=send, daemon=True)
        sender.start()
        lines, last_s = [], time.monotonic()
        for line in client.lines(_PATIENCE_S):
            if pauses is not None:
                pauses.append((last_s, time.monotonic()))
                last_s = time.monotonic()
            lines.append(line)
            if line.ending == "flush":
                break
        sender.join()
    return lines
