"""The server under Granian (`USE_GRANIAN`): start, TLS, end and its bounds. The protocols' own tests run
under it with `USE_GRANIAN=true` in the environment."""

import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from asr_server.cli.conftest import tls
from E2Etest.drive.process import fake_model, running
from E2Etest.drive.session import act, data, open_session, receive

pytestmark = [pytest.mark.integration, pytest.mark.nightly]
GRANIAN = {"USE_GRANIAN": "true"}


def test_it_serves_and_says_so(tmp_path, fake_sample, sample):
    """The plan, a recording, and streams, which are whole also where the app stops waiting for the client: before the
    events of a job it waits for the first event or the end of the client, and cancels the second wait."""
    with running(tmp_path / "log", **fake_sample, **GRANIAN) as server:
        assert server.transcribe(sample[0]).json()["text"] == sample[1]
        (option,) = [option for option in server.health()["plan"] if option["name"] == "use_granian"]
        assert option["active"]
        for _ in range(40):
            assert server.job(sample[0])[0]["status"] == "succeeded"
        assert server.stop() == 0
    assert "Traceback" not in server.log()


def test_it_serves_tls(tmp_path, fake_sample, sample):
    """With certificate and key in two files or in one, from TLS 1.2 on."""
    two, one = tls(tmp_path)["SSL_CERTFILE"], tmp_path / "both.pem"
    one.write_text("".join(Path(file).read_text() for file in two.split(",")))
    for number, files in enumerate((two, str(one))):
        with running(tmp_path / f"log{number}", **fake_sample, **GRANIAN, SSL_CERTFILE=files) as server:
            assert server.transcribe(sample[0]).json()["text"] == sample[1]


def test_running_work_is_finished_at_the_end(tmp_path, sample, speech):
    """After SIGTERM a recording gets its answer, a live session its final, and the process ends with 0."""
    slow = fake_model(tmp_path, script={"step_s": 0.5}, text="one two three four")
    with (
        running(tmp_path / "log", **slow, **GRANIAN, PRELOAD="true") as server,
        ThreadPoolExecutor(1) as pool,
        open_session(server) as talk,
    ):
        talk.send(data(speech[:32_000]))
        asked = pool.submit(server.transcribe, sample[0])
        server.wait_for(lambda health: health["queue"]["running"] >= 1)
        act(talk, "status")
        server.process.terminate()
        messages = []
        while not messages or not messages[-1].get("is_final"):
            messages.append(receive(talk))
        assert asked.result().json()["text"] == messages[-1]["text"] == "one two three four"
        assert server.process.wait(30) == 0


def test_heads_and_readers_are_bounded(tmp_path, fake_sample):
    """A head far over 64 KiB is refused, also one that never ends; the kernel looks for a peer that is gone."""
    with running(tmp_path / "log", **fake_sample, **GRANIAN) as server:
        for end in (b"\r\n\r\n", b""):
            answer = b""
            with socket.create_connection(("127.0.0.1", server.port), timeout=20) as peer, suppress(ConnectionError):
                peer.sendall(b"GET /livez HTTP/1.1\r\nhost: 127.0.0.1\r\nx: " + b"a" * 400_000 + end)
                answer = peer.recv(1_000)
            assert not answer or answer.startswith((b"HTTP/1.1 431", b"HTTP/1.1 400"))
        with socket.create_connection(("127.0.0.1", server.port)) as peer:
            time.sleep(0.2)
            shown = subprocess.run(["ss", "-tno"], capture_output=True, text=True, check=True).stdout
            name = f"127.0.0.1:{peer.getsockname()[1]} "
            own = [line for line in shown.splitlines() if f"127.0.0.1:{server.port} " in line and name in line]
            assert any("timer:(keepalive" in line for line in own), shown
        assert server.client.get("/livez").status_code == 200
