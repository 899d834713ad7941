"""A live session is shared where several processes serve: its owner and its readers come to any of them."""

import json
import signal
from contextlib import ExitStack, suppress
from itertools import cycle, islice

import httpx
import pytest

from asr_server.net import websocket_io
from E2Etest.live.readers import error, reader, say, until
from E2Etest.live.session import act, data, open_session, pieces, upto_flush
from E2Etest.process import ready
from E2Etest.workers.processes import front_ends, replaced

pytestmark = [pytest.mark.integration, pytest.mark.websocket, pytest.mark.timeout(300)]

# A new connection goes to any of three processes. All of so many come to the one that has the session in one run of
# 500,000.
MANY = 12
_OTHER_KEY = {"Authorization": "Bearer sk-another"}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Three front ends on the demonstration model. A caller with a session may have one more request under way."""
    folder = tmp_path_factory.mktemp("shared")
    with ready(folder / "log", WORKERS="3", API_KEYS="sk-workers,sk-another", KEY_MAX_REQUESTS="2") as found:
        yield found
        assert "Traceback" not in found.log()


def _anew(server, method, path, **options):
    """Ask over a connection of its own, with the owner's key unless the headers have another."""
    with httpx.Client(base_url=server.base, headers=server.client.headers, timeout=60) as client:
        return client.request(method, path, **options)


def _say_until_committed(socket, speech):
    """Say it at the pace of speech, again and again, until words of an utterance are committed that goes on."""
    for part in islice(cycle(pieces(data(speech), 16_000)), 200):
        socket.send(part)
        with suppress(TimeoutError):
            while True:
                message = json.loads(socket.recv(timeout=0.5))
                if message.get("is_partial") and message["committed"]:
                    return
    raise AssertionError("no words were committed")


def test_any_process_makes_reads_and_revokes_links(server, speech):
    """Each reader gets words while the speaker goes on, the final, also as cues, and the end of its link. Nobody but
    the owner makes and revokes links, also at the processes that do not have the session."""
    with open_session(server) as socket, ExitStack() as stack:
        address = f"/v1/live/{socket.hello['session_id']}/share"
        made = [_anew(server, "POST", address, json={}) for _ in range(MANY)]
        assert {answer.status_code for answer in made} == {200}
        links = [answer.json() for answer in made]
        found = [stack.enter_context(reader(server, link)) for link in links]
        assert [next(events) for events in found] == MANY * [{"type": "begin", "complete": True}]
        _say_until_committed(socket, speech)
        words = [until(events, "words")[-1]["text"] for events in found]
        act(socket, "flush")
        said = "".join(message["text"] for message in upto_flush(socket) if message.get("is_final"))
        assert all(said.startswith(text) for text in words)
        assert {until(events, "final")[-1]["text"] for events in found} == {said}
        cues = {httpx.get(server.base + link["captions"]).text for link in links}
        assert len(cues) == 1
        assert said.split()[-1] in cues.pop()
        for link, events in zip(links, found, strict=True):
            own = f"{address}/{link['token']}"
            assert error(_anew(server, "DELETE", own, headers=_OTHER_KEY)) == "session_not_found"
            answer = _anew(server, "DELETE", own, headers={"X-Request-ID": "mine"})
            assert (answer.status_code, answer.headers["x-request-id"]) == (204, "mine")
            assert list(events) == [{"type": "end", "reason": "revoked"}]
        gone = {httpx.get(server.base + link["captions"]).status_code for link in links}
        assert gone == {404}
        assert {error(_anew(server, "POST", address, headers=_OTHER_KEY)) for _ in range(MANY)} == {"session_not_found"}
        socket.close(websocket_io.DISCARD)
    assert links[0]["token"] not in server.log()


def test_each_of_two_channels_is_shared_at_any_process(server):
    """The id of either channel is the part before or after the tilde."""
    with open_session(server, channels=2) as socket:
        paths = [f"/v1/live/{identity}/share" for identity in socket.hello["session_id"].split("~")]
        assert [_anew(server, "POST", path).status_code for path in MANY * paths] == 2 * MANY * [200]
        socket.close(websocket_io.DISCARD)


@pytest.mark.nightly
def test_no_process_that_is_replaced_waits_for_readers(server):
    """Readers get the end of the session, or an error where the process of their connection is replaced before."""
    with open_session(server) as socket, ExitStack() as stack:
        link = _anew(server, "POST", f"/v1/live/{socket.hello['session_id']}/share").json()
        found = [stack.enter_context(reader(server, link)) for _ in range(MANY)]
        for events in found:
            next(events)
        old = front_ends(server)
        server.process.send_signal(signal.SIGHUP)
        replaced(server, old)
        ends = [list(events)[-1] for events in found]
    assert {end.get("reason") or end["error"]["code"] for end in ends} <= {"session", "worker_lost"}
    assert "does not end in time" not in server.log()


def test_readers_at_any_process_get_the_end_of_a_server_that_ends(server, speech):
    """The session gets its final, and every reader has it before the end, whichever process its connection is at. It is
    the last test of this server."""
    with ExitStack() as stack:
        socket = stack.enter_context(open_session(server))
        link = _anew(server, "POST", f"/v1/live/{socket.hello['session_id']}/share").json()
        found = [stack.enter_context(reader(server, link)) for _ in range(MANY)]
        for events in found:
            next(events)
        said = say(socket, speech)
        assert server.stop() == 0
        for events in found:
            *seen, end = list(events)
            assert (seen[-1]["text"], end) == (said, {"type": "end", "reason": "session"})
