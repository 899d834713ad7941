"""A live session that goes on at another server; the servers are scripted, one connection each."""

import threading
import time

import pytest

from asr_server.client import live
from asr_server.client.conftest import WAIT_S, at, servers, text
from asr_server.client.live import ConnectionClosed, LiveClient, LiveError


def _wait_until_moving(client):
    give_up_s = time.monotonic() + WAIT_S
    while client._move is None:
        assert time.monotonic() < give_up_s
        time.sleep(0.005)


def _shown(lines):
    return [(line.utterance, line.committed, line.tentative, len(line.words)) for line in lines]


def test_a_session_that_is_handed_over_goes_on_without_a_line_lost_or_doubled():
    """The next server gets what the last one had not finished, and the last one is told that the session has moved."""
    words = {"utterance": 1, "words": [{"word": "on", "start": 0.0, "end": 1.0, "source": "estimated"}]}

    def first(side):
        assert "handover=true" in side.path
        side.hello()
        side.hear(8, 2)
        side.say(text(1, "on", ending="pause"), at(4, 1), text(2, "and", " so", end=1.5))
        # What is said after the request is left to the next server, but for the words of a final that is here.
        side.say(
            {"status": "reconnect", "within_s": 5, **at(4, 1)}, words, text(2, "and thus", ending="pause"), at(8, 2)
        )
        assert side.end() == 4010

    def second(side):
        assert "session_id=live_1" in side.path
        assert "received=1" in side.path
        assert side.first == {
            "action": "continue",
            "state": "s4",
            "utterance": 2,
            "committed": "and",
            "end": 1.5,
            "speakers": [],
        }
        side.hello(4, 1)
        side.hear(6, 1)
        assert (bytes(side.audio), side.actions) == (b"5678ab", [(2, "flush")])
        side.say(text(2, "and then", ending="pause"))
        assert side.end() == 1000

    with servers(first, second) as url:
        client = LiveClient(url)
        client.send(b"12")
        client.configure(language="de")
        client.send(b"3456")
        client.flush()
        client.send(b"78")
        lines, shown = client.lines(), []
        while len(shown) < 3:
            shown += _shown([next(lines)])
        client.send(b"ab")
        shown += _shown([next(lines)])
        assert shown == [(1, "on", "", 0), (2, "and", " so", 0), (1, "on", "", 1), (2, "and then", "", 0)]
        client.close()


@pytest.mark.parametrize("refusal", ["draining", "full"])
def test_the_last_server_is_read_on_while_no_other_takes_the_session(refusal):
    """The next try begins from what the last server has said meanwhile."""

    def first(side):
        side.hello()
        side.hear(4)
        side.say({"status": "reconnect", "within_s": 5, **at(0)})
        side.say(text(1, "on", ending="pause"), at(4))
        assert side.end() == 4010

    def refusing(side):
        assert side.first["state"] == "s0"
        if refusal == "full":
            side.say({"error": {"message": "The server is full.", "code": "overloaded"}, "code": "overloaded"})
        side.close(1001 if refusal == "draining" else 1013)

    def last(side):
        assert (side.first["state"], "received=1" in side.path) == ("s4", True)
        side.hello(4)
        side.hear(2)
        assert bytes(side.audio) == b"56"
        side.say(text(2, "then", ending="pause"))
        side.end()

    with servers(first, refusing, last) as url, LiveClient(url) as client:
        client.send(b"1234")
        lines = client.lines()
        assert next(lines).committed == "on"
        sender = threading.Timer(0.0, client.send, [b"56"])
        sender.start()
        assert next(lines).committed == "then"
        sender.join()


def test_a_server_that_goes_before_another_is_found_breaks_the_connection_and_resume_goes_on():
    """The server's last final counts; what it has not finished goes to the next server."""

    def first(side):
        side.hello()
        side.hear(4)
        side.say(text(1, "on", ending="pause"), at(2))
        side.close(1001)

    def second(side):
        side.hello(2)
        side.hear(4)
        assert bytes(side.audio) == b"3456"
        side.end()

    with servers(first, second) as url, LiveClient(url) as client:
        client.send(b"1234")
        lines = client.lines()
        assert next(lines).committed == "on"
        with pytest.raises(ConnectionClosed):
            next(lines)
        client.resume()
        client.send(b"56")


def test_audio_and_actions_while_a_session_moves_reach_the_next_server_once():
    """The last server may have closed its connection meanwhile; the sender sees no error."""
    may_answer = threading.Event()

    def first(side):
        side.hello()
        side.say({"status": "reconnect", "within_s": 5, **at(0)})
        side.close(1001)

    def second(side):
        assert may_answer.wait(WAIT_S)
        side.hello(0)
        side.hear(4, 1)
        assert (bytes(side.audio), side.actions) == (b"1234", [(2, "flush")])
        side.say(text(1, "on", ending="pause"))
        side.end()

    with servers(first, second) as url, LiveClient(url) as client:
        shown = []
        reader = threading.Thread(target=lambda: shown.append(next(client.lines())))
        reader.start()
        client._socket.recv_events_thread.join(WAIT_S)  # the last server has gone
        _wait_until_moving(client)
        client.send(b"12")
        client.flush()
        client.send(b"34")
        may_answer.set()
        reader.join(WAIT_S)
        assert [line.committed for line in shown] == ["on"]


def test_a_server_without_continuations_is_resumed_as_before():
    """An older one: there is no first frame, and its orderly end ends the lines."""

    def first(side):
        side.hello(continued=False)
        side.hear(2)
        side.break_off()

    def second(side):
        assert "handover" not in side.path
        assert side.first is None
        side.say({"status": "connected", "session_id": "live_1", "resumed": True, "received_bytes": 2})
        side.hear(2)
        assert bytes(side.audio) == b"34"
        side.close(1001)

    with servers(first, second) as url, LiveClient(url) as client:
        client.send(b"12")
        with pytest.raises(ConnectionClosed):
            list(client.lines())
        client.resume()
        client.send(b"34")
        assert list(client.lines()) == []


def test_a_session_moves_only_while_all_that_it_needs_is_kept(monkeypatch):
    """Otherwise its server ends the utterance; if that is gone too, the loss is an error."""
    monkeypatch.setattr(live, "_BUFFER_BYTES", 4)

    def first(side):
        side.hello()
        side.hear(8)
        side.say({"status": "reconnect", "within_s": 5, **at(2)}, text(1, "on"))
        side.close(1001)

    def second(side):
        side.hello(2)
        assert side.end() == 4010

    with servers(first, second) as url, LiveClient(url) as client:
        client.send(b"12345678")
        lines = client.lines()
        assert next(lines).committed == "on"
        with pytest.raises(ConnectionClosed):
            next(lines)
        with pytest.raises(LiveError) as lost:
            client.resume()
        assert lost.value.code == "audio_lost"


def test_a_reset_utterance_is_not_stated_to_the_next_server():
    """The words that the caller discarded belong to no utterance."""

    def first(side):
        side.hello()
        side.hear(2, 1)
        side.say(text(1, "on"), {"status": "buffer_reset"}, {"status": "reconnect", "within_s": 5, **at(0)})
        assert side.end() == 4010

    def second(side):
        assert side.first == {"action": "continue", "state": "s0"}
        side.hello(0)
        side.hear(2, 1)
        assert side.actions == [(2, "reset")]
        side.say(text(2, "off", ending="pause"))
        side.end()

    with servers(first, second) as url, LiveClient(url) as client:
        client.send(b"12")
        client.reset()
        assert [next(lines).committed for lines in [client.lines()] for _ in range(2)] == ["on", "off"]


def test_a_client_that_is_closed_while_its_session_moves_leaves_no_session_behind():
    """Neither with the last server nor with the next one."""
    may_answer = threading.Event()

    def first(side):
        side.hello()
        side.say({"status": "reconnect", "within_s": 5, **at(0)})
        assert side.end() == 1000

    def second(side):
        assert may_answer.wait(WAIT_S)
        side.hello(0)
        assert side.end() == 4010

    with servers(first, second) as url:
        client = LiveClient(url)
        reader = threading.Thread(target=lambda: list(client.lines()))
        reader.start()
        _wait_until_moving(client)
        client.close()
        may_answer.set()
        reader.join(WAIT_S)
        assert not reader.is_alive()


def test_a_resume_is_tried_again_until_its_time_is_over_or_nothing_can_mend_it():
    """The last error is raised."""

    def first(side):
        side.hello()
        side.close(1001)

    def draining(side):
        side.close(1001)

    def unknown(side):
        side.say({"error": {"message": "No session of this id is kept."}, "code": "session_not_found"})

    def full(side):
        side.say({"error": {"message": "The server is full.", "code": "overloaded"}, "code": "overloaded"})

    with servers(first, draining, full, draining, unknown) as url, LiveClient(url) as client:
        with pytest.raises(ConnectionClosed):
            list(client.lines())
        with pytest.raises(ConnectionClosed):
            client.resume_within(0.0)
        with pytest.raises(LiveError, match="No session"):
            client.resume_within(WAIT_S)


def test_there_is_no_room_while_much_is_not_finished(monkeypatch):
    """A continuation makes room; so much that no audio of an utterance is dropped."""
    monkeypatch.setattr(live, "_BUFFER_BYTES", 100)

    def first(side):
        side.hello(endpointing="auto")
        side.hear(60)
        side.say(at(60), text(1, "on"))
        side.end()

    with servers(first) as url, LiveClient(url) as client:
        rooms = [client.has_room]
        client.send(bytes(60))
        rooms.append(client.has_room)
        next(client.lines())
        client.send(b"")
        assert [*rooms, client.has_room] == [True, False, True]


def test_a_server_that_has_the_session_need_not_repeat_its_continuation():
    """The one that is here still leads to any other server when the connection breaks again."""

    def first(side):
        side.hello()
        side.hear(4)
        side.say(at(2), text(1, "on", ending="pause"))
        side.break_off()

    def again(side):
        side.hello(4, continued=False)
        side.break_off()

    def another(side):
        assert side.first["state"] == "s2"
        side.hello(2)
        side.hear(2)
        assert bytes(side.audio) == b"34"
        side.end()

    with servers(first, again, another) as url, LiveClient(url) as client:
        client.send(b"1234")
        lines = client.lines()
        assert next(lines).committed == "on"
        for _ in range(2):
            with pytest.raises(ConnectionClosed):
                list(client.lines())
            client.resume()
