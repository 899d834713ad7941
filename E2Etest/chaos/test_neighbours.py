"""While one key attacks speech, voices and live sessions, the requests of another key are answered."""

import resource
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress

import httpx
import numpy as np
import pytest

from E2Etest.chaos.neighbours import (
    KEYS,
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
from E2Etest.drive.session import act, open_session, receive
from E2Etest.drive.wire import frame
from E2Etest.live.readers import share

pytestmark = pytest.mark.websocket

ROUNDS = 3
LONG = ("The bill of $999,999.99 was paid on 12 May. " * 500)[:19_900]
MINUTE = recordings.wav(np.tile(recordings.samples(), 20)[: 58 * 16_000])


@pytest.fixture(scope="module")
def attacked(tmp_path_factory):
    """A server with two keys that has done once what the tests do, so that all is loaded that one needs."""
    log = tmp_path_factory.mktemp("neighbours") / "log"
    with ready(log, API_KEYS=KEYS, MALLOC_MMAP_THRESHOLD_="65536", LOG_LEVEL="INFO", WS_RESUME_S="5") as server:
        # Takes decoders, and writes once to the memory of all rows, which stays.
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda _: server.transcribe(MINUTE), range(8)))
        with closing(Neighbour(server)) as neighbour:
            for use in (neighbour.is_transcribed, neighbour.is_spoken, neighbour.has_a_voice):
                use()
        with ThreadPoolExecutor(4) as pool:  # tells speakers apart, and holds what that takes at most
            list(pool.map(lambda number: _delete_in_use(server, number), range(4)))
        yield server
    assert "Traceback" not in server.log(), server.log().partition("Traceback")[2][:8_000]


@pytest.fixture
def neighbour(attacked):
    with closing(Neighbour(attacked)) as found:
        yield found


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


def _unread(server, sent, *, seconds=3.0, ends=False):
    with opened(server, sent, ends=ends):
        time.sleep(seconds)


QUEUE, CANCELLED = pytest.mark.guarantee("speech-queue"), pytest.mark.guarantee("cancelled-texts")
SLOWLY = (message(type="start", speed=0.25), message(type="text", text=LONG), message(type="end"))
CANCELS = (message(type="text", text="ա" * 19_900), message(type="cancel")) * 4


@pytest.mark.parametrize(
    ("callers", "sent", "how"),
    [
        pytest.param(8, lambda n: spoken(f"{LONG} {n}"), {"seconds": 0.5}, marks=QUEUE, id="left"),
        pytest.param(6, lambda n: spoken(f"{n} {LONG}", speed=0.25), {}, marks=QUEUE, id="slow and unread"),
        pytest.param(6, lambda n: spoken(LONG, "/v1/audio/speech/stream"), {}, marks=QUEUE, id="events, unread"),
        pytest.param(8, lambda n: spoken(f"{n}. {LONG}", speed=4), {"ends": True}, marks=QUEUE, id="half-closed"),
        pytest.param(6, lambda n: socket_with("/ws/speech", *SLOWLY), {}, marks=QUEUE, id="unread sockets"),
        pytest.param(6, lambda n: socket_with("/ws/speech", *CANCELS), {"seconds": 1}, marks=CANCELLED, id="cancelled"),
    ],
)
def test_beside_speech(attacked, neighbour, note, request, callers, sent, how):
    """A sentence is spoken, and a recording is transcribed."""
    attack = Attack(callers, lambda server, n: _unread(server, sent(n), **how))
    _check(attacked, attack, neighbour.is_spoken, neighbour.is_transcribed)
    note(f"beside {callers} callers: {request.node.callspec.id}")


def _enrol(server, number):
    """The most recordings that one voice may have, each of nearly the longest."""
    files = [("files[]", ("a.wav", MINUTE))] * 5
    server.client.post("/v1/speakers", data={"name": f"voice {number}", "consent": "an attack"}, files=files)


def _delete_in_use(server, number):
    """A voice is deleted while a recording is compared with it."""
    audio, _ = recordings.sample()
    form = {"name": f"voice {number}", "consent": "an attack"}
    stored = server.client.post("/v1/speakers", data=form, files={"file": ("a.wav", audio)})
    with ThreadPoolExecutor(1) as pool:
        pool.submit(server.transcribe, audio, response_format="verbose_json", speakers="true")
        if stored.status_code == 201:
            assert server.client.delete(f"/v1/speakers/{stored.json()['id']}").status_code in (200, 404)


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
    for voice in attacked.client.get("/v1/speakers").json()["data"]:
        attacked.client.delete(f"/v1/speakers/{voice['id']}")
    note(f"beside {VOICES[name].callers} callers: {name}")


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
        events = request("GET", share(attacked, session)["events"])
        readers = [held.enter_context(opened(attacked, events)) for _ in range(510)]
        assert all(reader.recv(12).endswith(b"429") for reader in readers[-10:])
        with under(attacked, Attack(6, _empty_pages)) as steps, open_session(neighbour, encoding="opus") as other:
            for _ in range(10):
                other.send(b"\xf8\xff\xfe")  # a packet of silence
                act(other, "flush")
                while receive(other).get("ending") != "flush":
                    pass
            neighbour.is_transcribed()
        assert steps() >= 6


@pytest.mark.guarantee("long-texts")
def test_texts_that_arrive_slowly_leave_places_to_others(attacked, neighbour, note):
    """Eight of one key begin and go on in small pieces; another key's long text is accepted."""
    head = request("POST", "/v1/audio/speech/jobs", bytes(20_000_000))[:400]
    with nothing_left(attacked), ExitStack() as held:
        lines = [held.enter_context(opened(attacked, head[: head.index(b"\r\n\r\n") + 4])) for _ in range(8)]
        for _ in range(ROUNDS):
            time.sleep(1)
            for line in lines:
                with suppress(OSError):  # refused and closed
                    line.sendall(b" " * 1_000)
            posted = neighbour.client.post("/v1/audio/speech/jobs", json={"input": "A short one. " * 100})
            assert posted.status_code == 202, posted.text
            neighbour.client.delete(f"/v1/jobs/{posted.json()['id']}")
    note("beside 8 texts that arrive slowly")


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
                with suppress(OSError):  # it is not read any more, or closed
                    line.sendall(piece)
            most_mb = max(most_mb, attacked.resident_mb())
        neighbour.is_transcribed()
        attacked.wait_for(lambda health: not health["live"]["sessions"], timeout_s=60)
    measured("held_mib", max(0.0, most_mb - usual_mb))


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
        held.enter_context(closing(Neighbour(server))).is_transcribed()
    note("1,200 idle connections without a key at a limit of 1,024 files, and a recording is transcribed")
