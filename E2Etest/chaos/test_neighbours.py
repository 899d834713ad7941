"""While one key attacks speech, voices, jobs and live sessions, the requests of another key are answered."""

import resource
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import SimpleNamespace

import httpx
import numpy as np
import pytest

from E2Etest.chaos.neighbours import (
    ATTACKER,
    KEYS,
    NEIGHBOUR,
    Attack,
    Neighbour,
    message,
    nothing_left,
    opened,
    request,
    socket_with,
    spoken,
    under,
)
from E2Etest.drive import recordings
from E2Etest.drive.process import ready
from E2Etest.drive.session import act, data, open_session, receive
from E2Etest.drive.wire import frame

pytestmark = pytest.mark.websocket

ROUNDS = 3
LONG = ("The bill of $999,999.99 was paid on 12 May. " * 500)[:19_900]
MINUTE = recordings.wav(np.tile(recordings.samples(), 20)[: 58 * 16_000])
AUTHORIZED = {"Authorization": f"Bearer {ATTACKER}"}


@pytest.fixture(scope="module")
def attacked(tmp_path_factory):
    """A server with two keys that has done once what the tests do, so that all is loaded that one needs."""
    log = tmp_path_factory.mktemp("neighbours") / "log"
    with ready(log, API_KEYS=KEYS, MALLOC_MMAP_THRESHOLD_="65536", LOG_LEVEL="INFO", WS_RESUME_S="5") as server:
        # Takes decoders, and writes once to the memory of all rows, which stays.
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda _: server.transcribe(MINUTE), range(8)))
        neighbour = Neighbour(server)
        for use in (neighbour.is_transcribed, neighbour.is_spoken, neighbour.has_a_voice, neighbour.has_a_job_done):
            use()
        neighbour.close()
        with ThreadPoolExecutor(4) as pool:  # tells speakers apart, and holds what that takes at most
            list(pool.map(lambda number: _delete_in_use(server, number), range(4)))
        yield server
    traceback = server.log().partition("Traceback")[2]
    assert not traceback, traceback[:8_000]


@pytest.fixture
def neighbour(attacked):
    """The other key's client."""
    found = Neighbour(attacked)
    yield found
    found.close()


def _check(server, attack, *uses, rounds=ROUNDS):
    """The uses succeed beside the attack and after it, and nothing of the attack is left."""
    with nothing_left(server):
        with under(server, attack) as steps:
            for _ in range(rounds):
                for use in uses:
                    use()
                assert httpx.get(f"{server.base}/livez", timeout=60).status_code == 200
        assert steps() >= attack.callers, "not all attackers have done something"
        for use in uses:
            use()


# -- speech ------------------------------------------------------------------------------------------------------------


def _first_bytes(server, sent):
    with opened(server, sent) as line:
        line.recv(100)


def _unread(server, sent, *, seconds=3.0, ends=False):
    with opened(server, sent, ends=ends):
        threading.Event().wait(seconds)


SPEECH = {
    "long texts that are left": Attack(8, lambda server, n: _first_bytes(server, spoken(f"{LONG} {n}"))),
    "slow texts that nobody reads": Attack(6, lambda server, n: _unread(server, spoken(f"{n} {LONG}", speed=0.25))),
    "events that nobody reads": Attack(6, lambda server, n: _unread(server, spoken(LONG, "/v1/audio/speech/stream"))),
    "half-closed": Attack(8, lambda server, n: _unread(server, spoken(f"{n}. {LONG}", speed=4), ends=True)),
    "the same text, kept and unread": Attack(8, lambda server, n: _unread(server, spoken("The same again. " * 30))),
    "jobs of long texts": Attack(4, lambda server, n: _job_of_text(server)),
    "sockets that end and do not read": Attack(
        6,
        lambda server, n: _unread(
            server,
            socket_with(
                "/ws/speech",
                message(type="start", speed=0.25),
                message(type="text", text=LONG),
                message(type="end"),
            ),
        ),
    ),
}


def _job_of_text(server):
    posted = httpx.post(
        f"{server.base}/v1/audio/speech/jobs", headers=AUTHORIZED, json={"input": LONG * 20}, timeout=60
    )
    if posted.status_code == 202:
        _unread(server, request("GET", f"/v1/jobs/{posted.json()['id']}/events"), seconds=1)
        httpx.delete(f"{server.base}/v1/jobs/{posted.json()['id']}", headers=AUTHORIZED, timeout=60)


@pytest.mark.guarantee("speech-queue")
@pytest.mark.parametrize("name", SPEECH)
def test_beside_speech(attacked, neighbour, name, note):
    """A sentence is spoken, and a recording is transcribed."""
    _check(attacked, SPEECH[name], neighbour.is_spoken, neighbour.is_transcribed)
    note(f"beside {SPEECH[name].callers} callers: {name}")


@pytest.mark.guarantee("cancelled-texts")
def test_beside_texts_that_are_cancelled(attacked, neighbour, note):
    """A sentence is spoken, and a recording is transcribed."""
    texts = [message(type="text", text="ա" * 19_900) + message(type="cancel")] * 4
    attack = Attack(6, lambda server, n: _unread(server, socket_with("/ws/speech", *texts), seconds=1))
    _check(attacked, attack, neighbour.is_spoken, neighbour.is_transcribed)
    note("beside 6 sockets that cancel")


# -- voices ------------------------------------------------------------------------------------------------------------


def _enrol(server, number):
    """The most recordings that one voice may have, each of nearly the longest."""
    files = [("files[]", ("a.wav", MINUTE))] * 5
    form = {"name": f"voice {number}", "consent": "an attack"}
    httpx.post(f"{server.base}/v1/speakers", headers=AUTHORIZED, data=form, files=files, timeout=120)


def _delete_in_use(server, number):
    """A voice is deleted while a recording is compared with it."""
    audio, _ = recordings.sample()
    with httpx.Client(base_url=server.base, headers=AUTHORIZED, timeout=120) as client:
        form = {"name": f"voice {number}", "consent": "an attack"}
        stored = client.post("/v1/speakers", data=form, files={"files[]": ("a.wav", audio)})
        asked = {"response_format": "verbose_json", "speakers": "true"}
        using = threading.Thread(
            target=lambda: client.post("/v1/audio/transcriptions", data=asked, files={"file": ("a.wav", audio)})
        )
        using.start()
        if stored.status_code == 201:
            assert client.delete(f"/v1/speakers/{stored.json()['id']}").status_code in (200, 404)
        using.join()


def _half_an_enrolment(server, number):
    body = b'--b\r\nContent-Disposition: form-data; name="files[]"; filename="a"\r\n\r\n' + bytes(100_000)
    sent = request("POST", "/v1/speakers", body + bytes(10), "multipart/form-data; boundary=b")
    _unread(server, sent[:-50_000], seconds=2, ends=number % 2 == 0)


VOICES = {
    "enrolments of five minutes": Attack(3, _enrol),
    "voices that are deleted in use": Attack(4, _delete_in_use),
    "enrolments that are cut off": Attack(8, _half_an_enrolment),
}


@pytest.mark.guarantee("enrolment")
@pytest.mark.parametrize("name", VOICES)
def test_beside_enrolments(attacked, neighbour, name, note):
    """A voice is stored, and a recording is transcribed."""
    _check(attacked, VOICES[name], neighbour.has_a_voice, neighbour.is_transcribed, rounds=1)  # each is long
    left = httpx.get(f"{attacked.base}/v1/speakers", headers=AUTHORIZED, timeout=60).json()["data"]
    for voice in left:
        httpx.delete(f"{attacked.base}/v1/speakers/{voice['id']}", headers=AUTHORIZED, timeout=60)
    note(f"beside {VOICES[name].callers} callers: {name}")


# -- jobs --------------------------------------------------------------------------------------------------------------


def _job(server, number):
    """Its events are not read by four who watch, nor is its result; it is deleted meanwhile by turns."""
    audio, _ = recordings.sample()
    with httpx.Client(base_url=server.base, headers=AUTHORIZED, timeout=60) as client:
        posted = client.post("/v1/jobs", files={"file": ("a.wav", audio)}, data={"response_format": "srt"})
        if posted.status_code != 202:
            return
        place = f"/v1/jobs/{posted.json()['id']}"
        events, result = request("GET", f"{place}/events"), request("GET", f"{place}/result")
        with opened(server, events), opened(server, events, ends=True), opened(server, events * 20):
            if number % 2:
                client.delete(place)
            with opened(server, result * 20):
                threading.Event().wait(1)
        client.delete(place)


def test_beside_jobs_that_nobody_reads(attacked, neighbour):
    """Another key's job is done, and its recording is transcribed."""
    _check(attacked, Attack(6, _job), neighbour.has_a_job_done, neighbour.is_transcribed)


# -- live sessions -----------------------------------------------------------------------------------------------------


def test_turns_of_many_sessions(attacked, neighbour):
    """More sessions than may wait for the estimate of the end of a turn speak and pause, and none reads."""
    speech = recordings.samples()
    turn = frame(data(speech)) + frame(bytes(2 * 16_000))
    path = "/ws/transcribe?use_server_vad=true&turn_events=true"

    def talk(server, number):
        _unread(server, socket_with(path, *[turn] * 3), seconds=2, ends=number % 2 == 0)

    _check(attacked, Attack(20, talk), neighbour.is_transcribed)


def _empty_pages(server, number):
    page = struct.pack("<4sBBqIIIB", b"OggS", 0, 0, 0, 7, 0, 0, 0)
    with open_session(server, encoding="opus") as session:
        session.send(9_000 * page)
        time.sleep(0.5)


@pytest.mark.guarantee("turns")
def test_decoders_and_readers_are_taken_in_turns(attacked, neighbour):
    """Six sockets of one key send empty Ogg pages, and the readers of one session take every place that they can."""
    with ExitStack() as held:
        session = held.enter_context(open_session(attacked))
        path = f"/v1/live/{session.hello['session_id']}/share"
        token = httpx.post(f"{attacked.base}{path}", headers=AUTHORIZED, json={}).json()["token"]
        events = request("GET", f"/v1/live/shared/{token}/events")
        readers = [held.enter_context(opened(attacked, events)) for _ in range(510)]
        refused = sum(reader.recv(12).endswith(b"429") for reader in readers[-10:])
        assert refused == 10
        others = SimpleNamespace(key=NEIGHBOUR, live_url=attacked.live_url)
        with under(attacked, Attack(6, _empty_pages)) as steps, open_session(others, encoding="opus") as other:
            for _ in range(10):
                other.send(b"\xf8\xff\xfe")  # a packet of silence
                act(other, "flush")
                while receive(other).get("ending") != "flush":
                    pass
            neighbour.is_transcribed()
        assert steps() >= 6


# -- what one caller may hold ------------------------------------------------------------------------------------------


@pytest.mark.guarantee("long-texts")
def test_texts_that_arrive_slowly_leave_places_to_others(attacked, neighbour, note):
    """Eight of one key begin and go on in small pieces; another key's long text is accepted."""
    head = request("POST", "/v1/audio/speech/jobs", bytes(20_000_000))[:400]
    with nothing_left(attacked), ExitStack() as held:
        lines = [held.enter_context(opened(attacked, head[: head.index(b"\r\n\r\n") + 4])) for _ in range(8)]
        for _ in range(ROUNDS):
            time.sleep(1)
            for line in lines:
                _go_on(line)
            posted = neighbour.client.post("/v1/audio/speech/jobs", json={"input": "A short one. " * 100})
            assert posted.status_code == 202, posted.text
            neighbour.client.delete(f"/v1/jobs/{posted.json()['id']}")
    note("beside 8 texts that arrive slowly")


def _go_on(line):
    try:
        line.sendall(b" " * 1_000)
    except OSError:  # refused and closed
        return


@pytest.mark.guarantee("unfinished-messages")
@pytest.mark.parametrize("path", ["/ws/transcribe", "/ws/speech", "/v1/realtime?intent=transcription"])
def test_unfinished_messages_hold_little_and_not_for_long(attacked, neighbour, path, measured):
    """Thirty sockets send 16 MiB each of a message that they do not end."""
    piece = frame(bytes(1 << 20), is_last=False)
    usual_mb = most_mb = attacked.resident_mb()
    with nothing_left(attacked), ExitStack() as held:
        lines = [held.enter_context(opened(attacked, socket_with(path))) for _ in range(30)]
        for line in lines:
            line.settimeout(0.2)
        for _ in range(16):
            for line in lines:
                _send_most(line, piece)
            most_mb = max(most_mb, attacked.resident_mb())
        neighbour.is_transcribed()
        attacked.wait_for(lambda health: not health["live"]["sessions"], timeout_s=60)
    measured("held_mib", max(0.0, most_mb - usual_mb))


def _send_most(line, piece):
    try:
        line.sendall(piece)
    except OSError:  # it is not read any more, or closed
        return


@pytest.mark.guarantee("open-files")
def test_idle_connections_shut_nobody_out(tmp_path, note):
    """More of them than files may be open without asking the system for more."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[1] < 8_192:
        pytest.skip("the system allows too few open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (1_024, before[1]))
    try:
        held_server = ready(tmp_path / "log", API_KEYS=KEYS)
        server = held_server.__enter__()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], 8_192), before[1]))
    with ExitStack() as held:
        held.push(held_server)
        held.callback(resource.setrlimit, resource.RLIMIT_NOFILE, before)
        for _ in range(1_200):
            held.enter_context(opened(server, b"GET / HTTP/1.1\r\nX: "))
        neighbour = Neighbour(server)
        held.callback(neighbour.close)
        neighbour.is_transcribed()
    note("1,200 idle connections without a key at a limit of 1,024 files, and a recording is transcribed")
