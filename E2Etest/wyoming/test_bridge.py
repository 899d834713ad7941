"""The bridge as a process: its options, its log, and its server that is away."""

import asyncio

import pytest
from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.info import Describe, Info

from asr_server.client.conftest import answering
from E2Etest.cli.commands import command
from E2Etest.drive import recordings
from E2Etest.drive.process import free_port, ready
from E2Etest.drive.session import data
from E2Etest.wyoming.client import answer, connected, heard, refused
from E2Etest.wyoming.conftest import bridged

pytestmark = pytest.mark.integration


@pytest.mark.nightly
async def test_without_a_server_there_is_an_error_and_later_there_are_words(tmp_path, fake_sample):
    """The bridge is up before the server, and after it: describe works, errors say where nothing answers."""
    port = free_port()
    base = f"http://127.0.0.1:{port}"
    with bridged(base, "--language", "en") as bridge:
        gone = await refused(bridge, data(recordings.samples()))
        assert gone.code == "server_unreachable"
        assert base in gone.text
        with ready(tmp_path / "log", port=port, **fake_sample) as again:
            assert (await heard(bridge, data(recordings.samples()))).text == recordings.sample()[1]
            async with connected(bridge) as client:
                await client.write_event(AudioStart(16_000, 2, 1).event())
                await client.write_event(AudioChunk(16_000, 2, 1, data(recordings.samples())).event())
                await asyncio.to_thread(again.wait_for, lambda h: h["live"]["sessions"] - h["live"]["waiting"] == 1)
                again.process.kill()
                again.process.wait()
                await client.write_event(AudioStop().event())
                assert (await answer(client))[-1].data["code"] == "connection_lost"
        assert (await refused(bridge, b"\0\0")).code == "server_unreachable"


@pytest.mark.slow("starts a server and a bridge")
async def test_a_server_with_keys_gets_its_key(start, tmp_path):
    """From a file, since command lines are public; without it the client is told that a key is missing."""
    with start(API_KEYS="sk-of-the-server") as server:
        file = tmp_path / "key"
        file.write_text(server.key)
        with bridged(server.base, "--api-key-file", file) as bridge:
            assert (await heard(bridge, data(recordings.samples()), language="en")).text == recordings.sample()[1]
        with bridged(server.base) as bridge:
            assert (await refused(bridge, data(recordings.samples()))).code == "missing_api_key"


@pytest.mark.slow("starts a server and a bridge")
async def test_a_port_that_is_taken_is_said(port):
    """One line, exit code 1."""
    done = await asyncio.to_thread(command, "wyoming", "--port", port)
    assert done.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("wrong", [["--language", "klingon!"], ["--server", "ftp://127.0.0.1"]])
async def test_what_would_fail_for_every_utterance_is_reported_at_the_start(wrong):
    """What is wrong, at most a hint behind it, exit code 2."""
    done = await asyncio.to_thread(command, "wyoming", "--port", 0, *wrong)
    assert done.returncode == 2
    assert wrong[0] in done.stderr.splitlines()[0]
    assert done.stderr.count("\n") <= 2


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("nobody", "No server answers at"),
        ("keyless", "refuses the bridge: This server needs an API key"),
        ("other", "is no asr-server"),
    ],
)
@pytest.mark.nightly
async def test_a_server_that_cannot_be_used_is_logged_and_told(kind, reason, start):
    """At the start, to Home Assistant, and with every utterance that fails."""
    log = []
    with answering(b"<html>", 404) as (other, _), start(API_KEYS="sk-long-enough-1") as keyless:
        address = {"nobody": "http://127.0.0.1:9", "keyless": keyless.base, "other": other}[kind]
        with bridged(address, log=log) as port:
            async with connected(port) as client:
                await client.write_event(Describe().event())
                (program,) = Info.from_event(await client.read_event()).asr
            code = (await refused(port, bytes(64_000))).code
    assert not program.installed
    assert reason in program.description
    not_ready, failed = log[:2]
    assert "the server is not ready" in not_ready
    assert reason in not_ready
    assert "utterance failed" in failed
    assert code in failed
