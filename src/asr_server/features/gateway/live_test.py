"""Live sessions through the gateway, with scripted workers. `carried_session_test` has what is sent again."""

import asyncio
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from urllib.parse import parse_qs

import pytest
from starlette.testclient import WebSocketDenialResponse
from starlette.websockets import WebSocket, WebSocketDisconnect

from asr_server.features.gateway import live_relay
from asr_server.features.gateway.conftest import KEYS
from asr_server.features.gateway.restart_policy import WorkerState
from asr_server.features.handover import continuation
from asr_server.features.handover.continuation import Continuation, TurnSettings
from asr_server.net.websocket_io import DISCARD, MOVED

PATH = "/ws/transcribe"
NOT_FOUND = {"error": {"code": "session_not_found"}}


@dataclass
class _Session:
    """A live session of a worker."""

    begin: Continuation
    process: object
    api_key: str | None
    audio: bytes = b""
    received: int = 0  # the number of the last final that the gateway has
    finals: int = 0
    actions: int = 0

    @property
    def state(self):
        """Return the place where the next worker would go on: all is finished."""
        heard = {"samples": self.begin.samples + len(self.audio) // 2, "actions": self.begin.actions + self.actions}
        heard |= {"received_bytes": self.begin.received_bytes + len(self.audio)}
        return replace(self.begin, utterances=self.begin.utterances + self.finals, **heard)

    def final(self):
        """The next final: how many bytes the session has been sent in all."""
        self.finals += 1
        text = f"{len(self.audio)} bytes"
        return {
            **{"text": text, "committed": text, "tentative": "", "is_partial": False, "is_final": True},
            **{"utterance": self.state.utterances, "start": self.begin.samples / 16_000},
            **{"end": self.state.samples / 16_000, "language": "", "lag_ms": 0, "ending": "flush"},
        }


@dataclass
class _Sessions:
    """The live sessions of all workers, in the order in which they were opened. A flush is answered with a final."""

    opened: list[_Session] = field(default_factory=list)
    actions: list[dict] = field(default_factory=list)  # of all sessions
    endings: list[tuple] = field(default_factory=list)  # of connections: the session and the close code
    dies: bool = False  # after its first message

    @property
    def audio(self):
        """Return the audio that each session has been sent."""
        return [session.audio for session in self.opened]

    async def serve(self, process, request, receive, send):
        """One connection of the gateway to a worker."""

        async def say(message):
            await send({"type": "websocket.send", "text": json.dumps(message)})

        await send({"type": "websocket.accept"})
        query = {name: values[-1] for name, values in parse_qs(request.query).items()}
        asked, frame = query.get("session_id", ""), None
        if asked and "handover" in query:
            frame = json.loads((await receive())["text"])
        token = request.headers.get("api-key") or query.get("token")
        session = self._kept(process, asked, token, frame)
        if asked and not session and not frame:
            await say(NOT_FOUND)
            await send({"type": "websocket.close", "code": 4004, "reason": "session_not_found"})
            return
        resumed = {"resumed": True} if asked else {}
        if session is None:
            begin = continuation.parse_state(frame["state"]) if frame else Continuation(f"live_{len(self.opened)}", "")
            begin = replace(begin, issuer=f"{len(self.opened):016x}")
            session = _Session(begin, process, token)
            self.opened.append(session)
            resumed |= {"continued": True} if asked else {}
            resumed |= {"continuation": continuation.wire_message(begin)}
        state = session.state
        resumed |= {"received_bytes": state.received_bytes, "actions": state.actions} if asked else {}
        hello = {"status": "connected", "session_id": state.session_id, "sample_rate": 16_000, "window_max_s": 30.0}
        await say(hello | resumed)
        if self.dies:
            process.kill()
        session.received = int(query.get("received", 0))
        while (message := await receive())["type"] == "websocket.receive":
            if message.get("bytes") is not None:
                session.audio += message["bytes"]
                continue
            self.actions.append(json.loads(message["text"]))
            kind = self.actions[-1]["action"]
            session.actions += kind != "left"
            if kind in ("flush", "left") and (final := session.final())["utterance"] > session.received:
                await say(final)
                if final["start"] < final["end"]:
                    await say({"status": "continuation", "continuation": continuation.wire_message(session.state)})
            if kind == "settled":
                await say({"status": "settled", "seconds": 0.0, "utterance": 0})
        self.endings.append((state.session_id, message["code"]))

    def _kept(self, process, identity, token, frame):
        for session in self.opened:
            is_issuer = frame is None or continuation.parse_state(frame["state"]).issuer == session.begin.issuer
            if (session.process, session.begin.session_id, session.api_key, is_issuer) == (
                process,
                identity,
                token,
                True,
            ):
                return session
        return None


@pytest.fixture
def sessions(workers):
    made = _Sessions()
    workers.on_socket = made.serve
    return made


def _flushed(socket):
    socket.send_text('{"action": "flush"}')
    return socket.receive_json()["text"]


def test_what_was_sent_is_sent_again_to_the_next_worker(sessions, workers, client):
    """The client's connection stays; the next worker gets all of the audio that has no final, and answers for it."""
    with client.socket(PATH) as socket:
        assert socket.receive_json()["status"] == "connected"
        for _ in range(3):
            socket.send_bytes(bytes(1_000))
        socket.send_text('{"action": "ping"}')
        assert socket.receive_json() == {"status": "pong"}
        client.portal.call(workers.processes[0].kill)
        socket.send_bytes(bytes(500))
        assert _flushed(socket) == "3500 bytes"
    assert len(workers.processes) == 2
    assert sessions.audio[1] == bytes(3_500)


def test_a_client_that_comes_back_finds_its_session_and_the_finals_that_it_lacks(sessions, workers, client):
    """In the same worker, by the number of the last final that it has."""
    with client.socket(PATH) as socket:
        identity = socket.receive_json()["session_id"]
        socket.send_bytes(bytes(1_000))
        for _ in range(2):
            assert _flushed(socket) == "1000 bytes"
    for received, missed in ((1, [2]), (2, [])):
        with client.socket(f"{PATH}?session_id={identity}&received={received}") as socket:
            hello = socket.receive_json()
            assert (hello["session_id"], hello["resumed"], hello["received_bytes"]) == (identity, True, 1_000)
            assert [socket.receive_json()["utterance"] for _ in missed] == missed
            socket.send_text('{"action": "ping"}')
            assert socket.receive_json() == {"status": "pong"}
    assert len(sessions.opened) == 1
    assert len(workers.processes) == 1


def test_a_client_that_comes_back_after_a_crash_finds_its_session_in_the_next_worker(sessions, workers, client):
    """Under its own id, with the audio that had no final."""
    with client.socket(PATH) as socket:
        identity = socket.receive_json()["session_id"]
        socket.send_bytes(bytes(1_000))
    client.portal.call(workers.processes[0].kill)
    with client.socket(f"{PATH}?session_id={identity}&received=0") as socket:
        hello = socket.receive_json()
        assert (hello["session_id"], hello["received_bytes"]) == (identity, 1_000)
        assert _flushed(socket) == "1000 bytes"


@pytest.mark.parametrize("crash", [False, True], ids=["alive", "after a crash"])
def test_a_session_is_its_owners_alone(sessions, workers, gateway_with, crash):
    """To another key there is no such session, and it waits on for its own."""
    client = gateway_with(api_keys=",".join(KEYS))
    own, other = ({"api-key": key} for key in KEYS)
    with client.socket(PATH, headers=own) as socket:
        identity = socket.receive_json()["session_id"]
        socket.send_bytes(bytes(1_000))
        assert _flushed(socket) == "1000 bytes"
    if crash:
        client.portal.call(workers.processes[0].kill)
    with client.socket(f"{PATH}?session_id={identity}&received=0", headers=other) as socket:
        assert socket.receive_json()["error"]["code"] == "session_not_found"
        with pytest.raises(WebSocketDisconnect) as closed:
            socket.receive_json()
    assert closed.value.code == 4004
    with client.socket(f"{PATH}?session_id={identity}&received=0", headers=own) as socket:
        hello = socket.receive_json()
        assert (hello["session_id"], hello["resumed"]) == (identity, True)
        assert socket.receive_json()["text"] == "1000 bytes"


def test_a_session_goes_to_the_connection_that_came_last(sessions, client):
    """The first one may be half-open: it is told, and the second goes on."""
    with client.socket(PATH) as first:
        identity = first.receive_json()["session_id"]
        with client.socket(f"{PATH}?session_id={identity}&received=0") as second:
            assert second.receive_json()["resumed"] is True
            assert first.receive_json()["error"]["code"] == "session_taken"
            with pytest.raises(WebSocketDisconnect) as closed:
                first.receive_json()
            assert closed.value.code == 4009
            assert _flushed(second) == "0 bytes"


def test_a_wrong_action_is_reported_and_the_session_goes_on(sessions, client):
    """The gateway answers it in the server's words, and the worker does not see it."""
    with client.socket(PATH) as socket:
        socket.receive_json()
        socket.send_text('{"action": "dance"}')
        assert socket.receive_json()["error"]["code"] == "invalid_value"
        assert _flushed(socket) == "0 bytes"


def test_an_open_session_keeps_its_worker_awake_also_while_its_client_is_away(sessions, workers, gateway_with):
    """For as long as it waits for the client; then the worker may sleep."""
    client = gateway_with(idle_timeout=0.1, ws_resume_s=1.0)
    with client.socket(PATH) as socket:
        socket.receive_json()
    time.sleep(0.5)
    assert client.worker.state is WorkerState.RUNNING
    give_up_s = time.monotonic() + 10
    while client.worker.state is not WorkerState.STOPPED:
        assert time.monotonic() < give_up_s, "it never slept"
        time.sleep(0.01)


def test_an_abandoned_session_ends_here_and_in_the_worker_when_its_key_needs_the_place(sessions, gateway_with):
    """The next session of the key gets the place; that of another key stays."""
    client = gateway_with(api_keys=",".join(KEYS), key_max_requests=1)
    own, other = ({"api-key": key} for key in KEYS)
    opened = []
    for headers in (other, own, own):
        with client.socket(PATH, headers=headers) as socket:
            opened.append(socket.receive_json()["session_id"])
    _until(lambda: (opened[1], DISCARD) in sessions.endings)
    with client.socket(f"{PATH}?session_id={opened[0]}&received=0", headers=other) as socket:
        assert socket.receive_json()["resumed"] is True
    assert [session for session, code in sessions.endings if code == DISCARD] == [opened[1]]


def test_a_session_can_be_resumed_with_its_own_place_alone(sessions, gateway_with):
    """Also before the broken connection is noticed, which is then ended."""
    client = gateway_with(api_keys=",".join(KEYS), key_max_requests=1)
    headers = {"api-key": KEYS[0]}
    with client.socket(PATH, headers=headers) as first:
        identity = first.receive_json()["session_id"]
        with client.socket(f"{PATH}?session_id={identity}&received=0", headers=headers) as second:
            assert second.receive_json()["resumed"] is True
            assert first.receive_json()["error"]["code"] == "session_taken"
            assert _flushed(second) == "0 bytes"


def test_a_worker_that_is_sent_audio_again_knows_when_it_began(sessions, workers, client):
    """So it is that of a speaker there too. What a client says of that is not passed on."""
    began_s = time.monotonic()
    with client.socket(f"{PATH}?began_s=1&first_speaker=9") as socket:
        socket.receive_json()
        socket.send_bytes(bytes(64_000))
        assert _flushed(socket) == "64000 bytes"
        client.portal.call(workers.processes[0].kill)
        assert _flushed(socket) == "0 bytes"
    first, second = (parse_qs(request.query) for request in workers.requests)
    assert first == {"handover": ["true"]}
    assert "first_speaker" not in second
    assert 2.0 <= float(second["began_s"][0]) - began_s < 2.0 + (time.monotonic() - began_s)


def test_a_session_that_moved_here_is_spoken_in_the_next_worker_too(sessions, workers, client):
    """Its audio began before it came here, by as much as a client may have to send again."""
    with _moved(client, _STATE) as socket:
        socket.receive_json()
        client.portal.call(workers.processes[0].kill)
        assert _flushed(socket) == "0 bytes"
    assert float(parse_qs(workers.requests[1].query)["began_s"][0]) < time.monotonic() - 30


def _encoded(state):
    return continuation.wire_message(state)["state"]


@contextmanager
def _moved(client, state, **shown):
    with client.socket(f"{PATH}?handover=true&session_id={state.session_id}&received=2") as socket:
        socket.send_text(json.dumps({"action": "continue", "state": _encoded(state), **shown}))
        yield socket


_STATE = Continuation(
    "live_0123abcd." + 22 * "x",
    16 * "0",
    2,
    160_000,
    300_001,
    5,
    configured=TurnSettings("German", "lamp", manual=True),
)


def test_of_two_that_continue_a_session_at_once_one_goes_on(sessions, client, monkeypatch):
    """The other one is told so, and the first keeps its session."""
    send_text, both = WebSocket.send_text, threading.Barrier(2, timeout=10)

    async def slowly(socket, data):
        await asyncio.sleep(0.2)
        await send_text(socket, data)

    monkeypatch.setattr(WebSocket, "send_text", slowly)

    def connect(_):
        with _moved(client, _STATE) as socket:
            hello = socket.receive_json()
            both.wait()
            return hello["session_id"] if "session_id" in hello else hello["error"]["code"]

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(connect, range(2))) == sorted([_STATE.session_id, "session_taken"])


def test_a_session_of_another_server_goes_on_from_its_state(sessions, workers, client):
    """The worker is told what the client says, and the client gets the worker's answer."""
    with _moved(client, _STATE, committed="3000 bytes", utterance=3) as socket:
        hello = socket.receive_json()
        told = {name: hello[name] for name in ("session_id", "resumed", "continued", "received_bytes", "actions")}
        assert told == {
            **{"session_id": _STATE.session_id, "resumed": True, "continued": True},
            **{"received_bytes": 300_001, "actions": 5},
        }
        now = continuation.parse_state(hello["continuation"]["state"])
        assert now == replace(_STATE, issuer=now.issuer)
        socket.send_bytes(bytes(32_000))
        socket.send_text('{"action": "flush"}')
        final = socket.receive_json()
        assert (final["utterance"], final["start"], final["end"]) == (3, 10.0, 11.0)
        assert socket.receive_json()["continuation"]["received_bytes"] == 332_001
    assert parse_qs(workers.requests[0].query)["received"] == ["2"]
    assert sessions.opened[0].begin == now


def test_a_session_is_resumed_where_its_state_was_issued_and_begun_anew_elsewhere(sessions, client):
    """A client that has been at another server since has a newer state than the session that it left here."""
    with _moved(client, _STATE) as socket:
        state = continuation.parse_state(socket.receive_json()["continuation"]["state"])
        socket.send_bytes(bytes(1_000))
        socket.send_text('{"action": "ping"}')
        socket.receive_json()
    with _moved(client, state) as socket:
        hello = socket.receive_json()
        assert (hello["received_bytes"], hello["actions"], "continued" in hello) == (301_001, 5, False)
        assert socket.receive_json()["status"] == "continuation"
    newer = replace(state, issuer=16 * "1", received_bytes=400_000)
    with _moved(client, newer) as socket:
        hello = socket.receive_json()
        assert (hello["received_bytes"], hello["continued"]) == (400_000, True)


@pytest.mark.parametrize("moves", [True, False])
def test_clients_that_can_move_are_asked_to_before_the_worker_ends(sessions, workers, gateway_with, moves):
    """One that moves is not waited for; one that does not is served for that time."""
    client = gateway_with(handover_s=0.3 if not moves else 10)
    began_s = time.monotonic()
    with client.socket(PATH) as other, client.socket(f"{PATH}?handover=true") as socket:
        assert "continuation" not in other.receive_json()
        identity = socket.receive_json()["session_id"]
        drained = client.portal.start_task_soon(client.drain)
        asked = socket.receive_json()
        assert (asked["status"], asked["within_s"]) == ("reconnect", 10 if moves else 0.3)
        assert continuation.parse_state(asked["continuation"]["state"]).session_id == identity
        with client.socket(f"{PATH}?handover=true&session_id={identity}") as again:
            again.send_text(json.dumps({"action": "continue", "state": asked["continuation"]["state"]}))
            assert again.receive_json()["code"] == "shutting_down"
        assert len(workers.processes) == 1
        if moves:
            socket.close(MOVED)
        drained.result(timeout=30)
    assert not moves or (identity, DISCARD) in sessions.endings
    assert not moves or time.monotonic() - began_s < 10


def test_all_clients_that_can_move_are_waited_for(sessions, gateway_with):
    """When the first of them has gone, the second still has its session, until it goes too."""
    client = gateway_with(handover_s=10)
    with client.socket(f"{PATH}?handover=true") as first, client.socket(f"{PATH}?handover=true") as second:
        identity = first.receive_json()["session_id"]
        second.receive_json()
        drained = client.portal.start_task_soon(client.drain)
        for socket in (first, second):
            assert socket.receive_json()["status"] == "reconnect"
        first.close(MOVED)
        _until(lambda: (identity, DISCARD) in sessions.endings)
        with pytest.raises(TimeoutError):
            drained.result(timeout=0.3)
        assert _flushed(second) == "0 bytes"
        second.close(MOVED)
        drained.result(timeout=30)


def test_a_client_that_closed_in_order_finds_its_final_in_the_next_worker(sessions, workers, client):
    """Its close ends the utterance for the worker that died and for the one behind it: nothing else has to be sent."""
    with client.socket(PATH) as socket:
        identity = socket.receive_json()["session_id"]
        socket.send_bytes(bytes(1_000))
    _until(lambda: sessions.endings == [("live_0", 1000)])
    client.portal.call(workers.processes[0].kill)
    with client.socket(f"{PATH}?session_id={identity}&received=0") as socket:
        assert socket.receive_json()["received_bytes"] == 1_000
        _until(lambda: {"action": "left"} in sessions.actions)
        assert socket.receive_json()["text"] == "1000 bytes"


def _kept(client):
    return list(client.state.live._sessions)


def test_a_session_that_was_resumed_does_not_end_when_its_waiting_time_would_have(sessions, gateway_with):
    """One that was cut off later has ended by then."""
    client = gateway_with(ws_resume_s=0.2)
    with client.socket(PATH) as socket:
        identity = socket.receive_json()["session_id"]
    with client.socket(f"{PATH}?session_id={identity}&received=0") as socket:
        assert socket.receive_json()["resumed"] is True
        with client.socket(PATH) as other:
            other.receive_json()
        _until(lambda: len(_kept(client)) < 2)
        assert _kept(client) == [identity]
    _until(lambda: not _kept(client))


def test_a_session_that_its_worker_refuses_is_over_here_too(sessions, workers, client):
    """Nothing of it is kept, and its client is told to open another one."""
    with client.socket(PATH) as socket:
        identity = socket.receive_json()["session_id"]
    workers.on_socket = _refuse
    with client.socket(f"{PATH}?session_id={identity}&received=0") as socket:
        assert socket.receive_json()["error"]["code"] == "session_not_found"
        with pytest.raises(WebSocketDisconnect) as closed:
            socket.receive_json()
        assert closed.value.code == 4004
    assert _kept(client) == []


async def _refuse(process, request, receive, send):
    await send({"type": "websocket.accept"})
    await send({"type": "websocket.send", "text": json.dumps({"error": {"code": "session_not_found"}})})
    await send({"type": "websocket.close", "code": 4004, "reason": "session_not_found"})


@pytest.mark.timeout(20)
def test_a_resume_that_fails_leaves_the_session_to_the_next_one(sessions, workers, client):
    """The worker refused the handshake once: the client tries again."""
    with client.socket(PATH) as socket:
        identity = socket.receive_json()["session_id"]
        socket.send_bytes(bytes(1_000))

    async def refuse(process, request, receive, send):
        await send({"type": "websocket.close", "code": 1000})

    workers.on_socket = refuse
    with pytest.raises(WebSocketDenialResponse), client.socket(f"{PATH}?session_id={identity}&received=0"):
        pass
    workers.on_socket = sessions.serve
    with client.socket(f"{PATH}?session_id={identity}&received=0") as socket:
        assert socket.receive_json()["received_bytes"] == 1_000
        assert _flushed(socket) == "1000 bytes"


def test_a_session_over_which_workers_die_again_and_again_ends(sessions, workers, client):
    """With the error and its close code, while a session that gets on outlives any number of them."""
    with client.socket(PATH) as socket:
        socket.receive_json()
        for _ in range(6):
            socket.send_bytes(bytes(320))
            assert _flushed(socket) == "320 bytes"
            client.portal.call(workers.processes[-1].kill)
        assert _flushed(socket) == "0 bytes"
        count = len(workers.processes)
        sessions.dies = True
        client.portal.call(workers.processes[-1].kill)
        assert socket.receive_json()["error"]["code"] == "worker_lost"
        with pytest.raises(WebSocketDisconnect) as closed:
            socket.receive_json()
        assert closed.value.code == 1012
    assert len(workers.processes) - count == 3


def test_a_session_that_has_moved_is_kept_no_longer(sessions, client):
    """Its client goes on with another server, and nobody else may."""
    with client.socket(PATH) as socket:
        identity = socket.receive_json()["session_id"]
        socket.send_bytes(bytes(1_000))
        socket.close(MOVED)
        _until(lambda: (identity, DISCARD) in sessions.endings)
        _until(lambda: not _kept(client))
    assert client.state.live._memory.held_bytes == 0


def test_a_continuation_gives_nobody_the_session_of_another_key(sessions, gateway_with):
    """To another key there is no such session, whatever state it has, and it goes on undisturbed."""
    client = gateway_with(api_keys=",".join(KEYS))
    own, other = ({"api-key": key} for key in KEYS)
    with client.socket(f"{PATH}?handover=true", headers=own) as socket:
        hello = socket.receive_json()
        state = replace(_STATE, session_id=hello["session_id"])
        with client.socket(f"{PATH}?handover=true&session_id={state.session_id}", headers=other) as thief:
            thief.send_text(json.dumps({"action": "continue", "state": _encoded(state)}))
            assert thief.receive_json()["code"] == "session_not_found"
        assert _flushed(socket) == "0 bytes"


def test_a_session_that_the_worker_ends_is_closed_as_there(workers, client):
    """With its code and its reason."""

    async def end(process, request, receive, send):
        await send({"type": "websocket.accept"})
        hello = {"status": "connected", "session_id": "live_0", "sample_rate": 16_000}
        hello |= {"continuation": continuation.wire_message(replace(_STATE, session_id="live_0"))}
        await send({"type": "websocket.send", "text": json.dumps(hello)})
        await send({"type": "websocket.close", "code": 4008, "reason": "slow_reader"})

    workers.on_socket = end
    with client.socket(PATH) as socket:
        socket.receive_json()
        with pytest.raises(WebSocketDisconnect) as closed:
            socket.receive_json()
    assert (closed.value.code, closed.value.reason) == (4008, "slow_reader")


def test_a_worker_gets_the_key_with_which_the_client_came_back(sessions, workers, gateway_with):
    """In the query as in a header; that of the first connection may not hold any more."""
    client = gateway_with(api_keys=",".join(KEYS))
    with client.socket(PATH, headers={"api-key": KEYS[0]}) as socket:
        identity = socket.receive_json()["session_id"]
    with client.socket(f"{PATH}?session_id={identity}&token={KEYS[0]}") as socket:
        assert socket.receive_json()["resumed"] is True
    assert parse_qs(workers.requests[-1].query)["token"] == [KEYS[0]]


def test_of_two_that_resume_at_once_the_other_one_is_told_in_a_message(sessions, client, monkeypatch):
    """As without a gateway: the handshake is not refused."""
    monkeypatch.setattr(live_relay, "_LEAVE_GRACE_S", 10.0)

    def resume(_):
        with client.socket(f"{PATH}?session_id={identity}") as socket:
            return next(iter(socket.receive_json().items()))

    with client.socket(PATH) as first, ThreadPoolExecutor(2) as pool:
        identity = first.receive_json()["session_id"]
        found = [pool.submit(resume, number) for number in range(2)]
        _until(lambda: client.state.live._sessions[identity].resumes == 2)
        first.close()
        told = [dict([each.result(timeout=20)]) for each in found]
    assert sorted(next(iter(each)) for each in told) == ["error", "status"]
    assert [each["error"]["code"] for each in told if "error" in each] == ["session_taken"]


def _until(holds):
    for _ in range(500):
        if holds():
            return
        time.sleep(0.01)
    raise AssertionError("it never held")
