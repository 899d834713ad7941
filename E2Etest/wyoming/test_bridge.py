"""What a Wyoming client finds: words, languages, formats, errors, company."""

import asyncio
import contextlib
import re
import socket
import socketserver
import threading
from http.server import SimpleHTTPRequestHandler

import numpy as np
import pytest
from wyoming.asr import TranscriptChunk
from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.event import Event, read_event
from wyoming.info import Describe, Info
from wyoming.ping import Ping, Pong

from E2Etest.cli.commands import command
from E2Etest.drive import recordings
from E2Etest.drive.process import ServerProcess, running
from E2Etest.drive.session import data, pcm_of
from E2Etest.wyoming.client import HOST, answer, connected, heard, refused, speak
from E2Etest.wyoming.conftest import bridged

pytestmark = pytest.mark.integration


def _sample(width=2, channels=1, rate=16_000):
    """The bundled recording in another shape."""
    times = np.arange(0, len(recordings.samples()), 16_000 / rate)
    wave = np.interp(times, np.arange(len(recordings.samples())), recordings.samples()) / 32_768
    wide = np.repeat(wave, channels)
    if width == 1:
        return ((wide * 127).round() + 128).astype(np.uint8).tobytes()
    return (wide * (2 ** (8 * width - 1) - 1)).astype("<i8").view(np.uint8).reshape(-1, 8)[:, :width].tobytes()


def _open_sessions(health):
    return health["live"]["sessions"] - health["live"]["waiting"]


async def test_the_sample_is_heard_as_it_was_said(port):
    """The words and the language of the bundled recording."""
    found = await heard(port, data(recordings.samples()), language="en")
    assert (found.text, found.language) == (recordings.sample()[1], "en")


async def test_without_a_language_it_is_found_out(port):
    """The transcript says which."""
    assert (await heard(port, data(recordings.samples()))).language == "en"


@pytest.mark.parametrize("spelling", ["en-US", "en_GB", "English"])
async def test_languages_come_in_the_clients_spelling(port, spelling):
    """Home Assistant has locales."""
    found = await heard(port, data(recordings.samples()), language=spelling)
    assert (found.text, found.language) == (recordings.sample()[1], "en")


@pytest.mark.parametrize(
    ("rate", "width", "channels"), [(48_000, 2, 2), (22_050, 2, 1), (44_100, 4, 1), (16_000, 3, 2), (16_000, 1, 1)]
)
async def test_any_rate_width_and_channel_count(port, rate, width, channels):
    """The same words as from 16-bit mono at 16 kHz."""
    pcm = _sample(width, channels, rate)
    found = await heard(port, pcm, rate=rate, width=width, channels=channels, language="en")
    assert found.text == recordings.sample()[1]


@pytest.mark.nightly
async def test_the_words_of_the_recordings_are_those_of_the_file_route(server):
    """Every voice through both: few words differ, because live commits words before it has heard the end."""
    clips = [clip for clip in recordings.clips() if clip.kind in {"phrase", "digits", "noisy"}]
    assert len(clips) > 30
    live = files = words = 0
    with bridged(server.base) as port:
        for clip in clips:
            offline = server.transcribe(clip.path.read_bytes(), language="en").json()["text"]
            found = await heard(port, data(pcm_of(clip.path)), language="en")
            live += recordings.word_errors(clip.text.split(), found.text.split())
            files += recordings.word_errors(clip.text.split(), offline.split())
            words += len(clip.text.split())
    print(f"word errors: wyoming {live}, file route {files}, of {words} words")
    assert live - files <= 0.02 * words


async def test_silence_is_an_empty_transcript(port):
    """Not an error: nobody spoke."""
    assert (await heard(port, bytes(64_000))).text == ""
    assert (await heard(port, b"")).text == ""


async def test_every_audio_stop_is_answered(port):
    """Also one without audio or audio-start before it."""
    async with connected(port) as client:
        await client.write_event(AudioStop().event())
        events = await answer(client)
    assert [event.type for event in events] == ["transcript-start", "transcript", "transcript-stop"]


async def test_pauses_do_not_end_an_utterance(port, wyoming_server):
    """Only the client's audio-stop does: what comes after a pause is in the same transcript, and in the same live
    utterance, so that the words before it are its context."""
    ended = r'^asr_live_utterances_total\{ending="pause"\} (\S+)$'
    before = re.findall(ended, wyoming_server.client.get("/metrics").text, re.MULTILINE)
    assert before
    sound = recordings.samples()
    twice = np.concatenate([sound, np.zeros(24_000, np.int16), sound])
    said = recordings.sample()[1]
    assert (await heard(port, data(twice), language="en")).text == f"{said} {said}"
    assert re.findall(ended, wyoming_server.client.get("/metrics").text, re.MULTILINE) == before


async def test_words_come_while_audio_is_still_sent(port):
    """A chunk of text, read before audio-stop goes out."""
    sound = np.concatenate([recordings.samples(), np.zeros(32_000, np.int16)])
    async with connected(port) as client:
        await client.write_event(AudioStart(16_000, 2, 1).event())
        await client.write_event(AudioChunk(16_000, 2, 1, data(sound)).event())
        assert (await client.read_event()).type == "transcript-start"
        first = TranscriptChunk.from_event(await client.read_event()).text
        assert first
        assert recordings.sample()[1].startswith(first)
        await client.write_event(AudioStop().event())
        assert (await answer(client))[-1].type == "transcript-stop"


async def test_one_connection_takes_many_utterances(port):
    """One after another; a language holds for its utterance alone."""
    async with connected(port) as client:
        for language in ("en", None, "en"):
            await speak(client, data(recordings.samples()), language=language)
            events = await answer(client)
            assert events[-2].data["text"] == recordings.sample()[1]


async def test_many_clients_at_once(port):
    """Twelve, each with its own words."""
    clips = [clip for clip in recordings.clips() if clip.kind == "phrase"][:6]
    alone = [await heard(port, data(pcm_of(clip.path)), language="en") for clip in clips]
    together = await asyncio.gather(*(heard(port, data(pcm_of(clip.path)), language="en") for clip in clips * 2))
    assert [found.text for found in together] == [found.text for found in alone] * 2


async def test_describe_says_what_home_assistant_asks(port):
    """One installed program with streaming, one installed model, the languages of the server's model as codes."""
    async with connected(port) as client:
        await client.write_event(Describe().event())
        (program,) = Info.from_event(await client.read_event()).asr
        (model,) = program.models
        await client.write_event(Ping(text="here").event())
        assert Pong.from_event(await client.read_event()).text == "here"
    assert program.installed
    assert program.supports_transcript_streaming
    assert model.installed
    assert {"en", "zh", "yue", "de", "zh-HK"} <= set(model.languages)


@pytest.mark.parametrize("language", ["zh-HK", "de", "pt-BR", "zh-Hans", "fil"])
async def test_every_offered_language_is_understood(port, language):
    """No error; what the demonstration model hears in it does not matter."""
    await heard(port, bytes(32_000), language=language)


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"language": "is"}, "unsupported_language"),
        ({"language": "!"}, "invalid_language_format"),
        ({"width": 7}, "invalid_audio"),
        ({"channels": 99}, "invalid_audio"),
    ],
)
async def test_what_cannot_be_done_is_an_error_event(port, asked, code):
    """With a stable code, the server's where it is the server's; the next connection is served."""
    assert (await refused(port, bytes(64_000), **asked)).code == code
    assert (await heard(port, data(recordings.samples()), language="en")).text == recordings.sample()[1]


@pytest.mark.parametrize(
    "said",
    [
        Event("transcribe", {"transcript_names": 5}),
        Event("audio-start", {"rate": 16_000}),
        Event("audio-chunk", {}, b"\0\0"),
    ],
)
async def test_events_with_wrong_fields_are_refused(port, said):
    """In words."""
    async with connected(port) as client:
        await client.write_event(said)
        (error,) = await answer(client)
    assert error.data["code"] == "invalid_event"


@pytest.mark.parametrize(
    "noise",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"[]\n",
        b"{}\n",
        b"\xff\n",
        b"x" * 100_000,
        b"[" * 60_000 + b"\n",
        b'{"type": "audio-chunk", "payload_length": 99999999999}\n',
        b'{"type": "audio-chunk", "data_length": "x"}\n',
    ],
)
async def test_other_protocols_end_their_own_connection_alone(port, noise):
    """Whatever comes: the connection closes, and the bridge goes on."""
    with socket.create_connection((HOST, port), timeout=30) as raw:
        with contextlib.suppress(OSError):  # it may have closed already
            raw.sendall(noise)
            raw.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionResetError):
            assert raw.recv(100) == b""
    assert (await heard(port, bytes(32_000))).text == ""


async def test_half_a_character_is_refused(port):
    """JSON may hold one, and no answer can: an error event, not a fault of the bridge."""
    with socket.create_connection((HOST, port), timeout=30) as raw, raw.makefile("rb") as answers:
        raw.sendall(b'{"type": "ping", "data": {"text": "\\ud83d"}}\n')
        event = read_event(answers)
    assert (event.type, event.data["code"]) == ("error", "invalid_event")


async def test_unknown_events_are_passed_over(port):
    """The protocol grows."""
    async with connected(port) as client:
        await client.write_event(Event("select-program", {"name": "x"}))
        await speak(client, data(recordings.samples()), language="en")
        assert (await answer(client))[-2].data["text"] == recordings.sample()[1]


async def test_hotwords_reach_the_server(port):
    """Names and terms are taken; the words stay those that were said."""
    found = await heard(
        port, data(recordings.samples()), language="en", transcript_names=["Zürich"], transcript_terms=["lamp"]
    )
    assert found.text


async def test_who_leaves_in_the_middle_frees_the_session(port, wyoming_server):
    """The server has no open connection left of it."""
    async with connected(port) as client:
        await client.write_event(AudioStart(16_000, 2, 1).event())
        await client.write_event(AudioChunk(16_000, 2, 1, bytes(32_000)).event())
        await asyncio.to_thread(wyoming_server.wait_for, lambda health: _open_sessions(health) == 1)
    await asyncio.to_thread(wyoming_server.wait_for, lambda health: _open_sessions(health) == 0)


@pytest.mark.nightly
async def test_without_a_server_there_is_an_error_and_later_there_are_words(tmp_path, fake_sample):
    """The bridge is up before the server, and after it: describe works, errors say where nothing answers."""
    server = ServerProcess(tmp_path / "log", PRELOAD="true", **fake_sample)
    port, base = server.port, server.base
    server.stop()
    with bridged(base, "--language", "en") as bridge:
        gone = await refused(bridge, data(recordings.samples()))
        assert gone.code == "server_unreachable"
        assert base in gone.text
        again = ServerProcess(tmp_path / "log", port=port, PRELOAD="true", **fake_sample)
        try:
            again.wait_until_live()
            again.wait_for(lambda health: health["model_loaded"], timeout_s=180)
            assert (await heard(bridge, data(recordings.samples()))).text == recordings.sample()[1]
            async with connected(bridge) as client:
                await client.write_event(AudioStart(16_000, 2, 1).event())
                await client.write_event(AudioChunk(16_000, 2, 1, data(recordings.samples())).event())
                await asyncio.to_thread(again.wait_for, lambda health: _open_sessions(health) == 1)
                again.process.kill()
                again.process.wait()
                await client.write_event(AudioStop().event())
                assert (await answer(client))[-1].data["code"] == "connection_lost"
        finally:
            again.stop()
        assert (await refused(bridge, b"\0\0")).code == "server_unreachable"


async def test_a_server_with_keys_gets_its_key(start, tmp_path):
    """From a file, since command lines are public; without it the client is told that a key is missing."""
    with start(API_KEYS="sk-of-the-server") as server:
        file = tmp_path / "key"
        file.write_text(server.key)
        with bridged(server.base, "--api-key-file", file) as bridge:
            assert (await heard(bridge, data(recordings.samples()), language="en")).text == recordings.sample()[1]
        with bridged(server.base) as bridge:
            assert (await refused(bridge, data(recordings.samples()))).code == "missing_api_key"


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
    assert wrong[0] in done.stderr


async def _described(port):
    async with connected(port) as client:
        await client.write_event(Describe().event())
        (program,) = Info.from_event(await client.read_event()).asr
        return program


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("nobody", "No server answers at"),
        ("keyless", "refuses the bridge: This server needs an API key"),
        ("other", "is no asr-server"),
    ],
)
@pytest.mark.nightly
async def test_a_server_that_cannot_be_used_is_logged_and_told(kind, reason, tmp_path):
    """At the start, to Home Assistant, and with every utterance that fails."""
    log = []
    with contextlib.ExitStack() as running_servers:
        address = "http://127.0.0.1:9"
        if kind == "keyless":
            server = running_servers.enter_context(
                running(tmp_path / "log", MODEL_ID="fake", API_KEYS="sk-long-enough-1")
            )
            address = server.base
        elif kind == "other":
            other = running_servers.enter_context(socketserver.TCPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler))
            threading.Thread(target=other.serve_forever, daemon=True).start()
            running_servers.callback(other.shutdown)
            address = f"http://127.0.0.1:{other.server_address[1]}"
        with bridged(address, log=log) as port:
            program = await _described(port)
            code = (await refused(port, bytes(64_000))).code
    assert not program.installed
    assert reason in program.description
    not_ready, failed = log[:2]
    assert "the server is not ready" in not_ready
    assert reason in not_ready
    assert "utterance failed" in failed
    assert code in failed
