"""A live session that outlives its connections, from the client's side; the server is scripted to break them."""

import json
import threading
from contextlib import contextmanager, suppress

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import serve

from asr_server.client import live
from asr_server.client.conftest import servers, text
from asr_server.client.live import LiveClient, LiveError, LiveOptions

_REFUSAL = {"error": {"message": "The server is full.", "code": "overloaded"}, "code": "overloaded"}


class _Server:
    """Keeps the bytes that it hears. Its first connection breaks after `breaks_after`; then come `refusals`."""

    def __init__(self, breaks_after, refusals=0):
        self.received, self.actions = bytearray(), []
        self.done = threading.Event()
        self._breaks_after = breaks_after
        self._refusals = refusals
        self._connections = 0

    def talk(self, socket):
        self._connections += 1
        if 1 < self._connections <= 1 + self._refusals:
            socket.send(json.dumps(_REFUSAL))
            return
        first = self._connections == 1
        socket.send(json.dumps({"session_id": "live_1", "received_bytes": len(self.received)}))
        for message in socket:
            if isinstance(message, str):
                self.actions.append((len(self.received), json.loads(message)["action"]))
                self.done.set()
                continue
            self.received += message
            if first and len(self.received) >= self._breaks_after:
                socket.close_socket()
                return


@contextmanager
def _serving(script):
    with serve(script.talk, "127.0.0.1", 0, max_size=None) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.socket.getsockname()[1]}"
        finally:
            server.shutdown()
            thread.join()


class _Yielding:
    """A lock that gives others a turn each time before it is taken, and each time it was given back."""

    def __init__(self, *turns):
        self._lock = threading.Lock()
        self._turns = list(turns)

    def __enter__(self):
        self._yield()
        self._lock.acquire()

    def __exit__(self, *_):
        self._lock.release()
        self._yield()

    def _yield(self):
        if self._turns:
            self._turns.pop(0)()


def _nothing(): ...


def _until_broken(client):
    with pytest.raises(ConnectionClosed):
        list(client.lines())


def test_what_is_sent_during_a_resume_arrives_once_and_in_its_place():
    """A sender that does not know of the cut may have its turn at any moment of it."""
    script = _Server(breaks_after=2)
    with _serving(script) as url:
        client = LiveClient(url)

        def send(pcm):
            with suppress(ConnectionClosed):  # it is sent again
                client.send(pcm)

        client.send(b"12")
        _until_broken(client)
        client._lock = _Yielding(lambda: send(b"34"), _nothing, _nothing, lambda: send(b"56"))
        client.resume()
        client.flush()
        assert script.done.wait(10)
        client.close()
    assert bytes(script.received) == b"123456"


class _Void:
    """A connection that takes everything, and from which nothing arrives."""

    def send(self, frame): ...

    def shutdown(self, how): ...

    @property
    def socket(self):
        return self


def test_an_action_that_was_lost_with_audio_is_sent_again_in_its_place():
    """The action is sent once, between the bytes between which it was made; one whose call has failed is the caller's
    to repeat."""
    script = _Server(breaks_after=2)
    with _serving(script) as url:
        client = LiveClient(url)
        client.send(b"12")
        _until_broken(client)
        with pytest.raises(ConnectionClosed):
            client.reset()
        client._socket = _Void()
        client.send(b"34")
        client.flush()
        client.send(b"56")
        client.resume()
        client.configure(language="de")
        client.close()
    assert bytes(script.received) == b"123456"
    assert script.actions == [(4, "flush"), (6, "config")]


def test_a_resume_that_was_refused_can_be_tried_again():
    """The session is known by its id as before."""
    with _serving(_Server(breaks_after=2, refusals=1)) as url:
        client = LiveClient(url)
        client.send(b"12")
        _until_broken(client)
        with pytest.raises(LiveError) as refused:
            client.resume()
        assert refused.value.code == "overloaded"
        client.resume()
        assert client.session_id == "live_1"
        client.close()


def test_audio_that_is_not_kept_any_more_is_not_passed_over_in_silence(monkeypatch):
    """If more was sent without arriving than is kept, that is an error, not a recording with a hole."""
    monkeypatch.setattr(live, "_BUFFER_BYTES", 1_000)
    script = _Server(breaks_after=2)
    with _serving(script) as url:
        client = LiveClient(url)
        client.send(b"12")
        _until_broken(client)
        with pytest.raises(ConnectionClosed):
            client.send(bytes(2_000))
        with pytest.raises(LiveError) as lost:
            client.resume()
        assert lost.value.code == "audio_lost"
        client.close()
    assert bytes(script.received) == b"12"


def _labelled(utterance, committed, who, *, settled=False, ending="pause"):
    runs = [{"speaker": who, "text": committed}]
    return {**text(utterance, committed, ending=ending), "speakers": runs, "speakers_settled": settled}


def test_a_line_comes_again_when_its_speakers_change_until_they_are_settled():
    """Also when it is a final, and with word times that came before."""
    runs = [{"speaker": "B", "text": "on"}]
    words = [{"word": "on", "start": 0.25, "end": 0.75, "source": "estimated", "speaker": "A"}]

    def script(side):
        side.hello(speakers=True)
        side.say(_labelled(1, "on", "A"), {"utterance": 1, "words": words})
        side.say({"type": "speaker_update", "utterance": 1, "speakers": runs, "speakers_settled": True})
        side.end()

    with servers(script) as url, LiveClient(url, LiveOptions(speakers=True)) as client:
        lines = client.lines()
        shown = [next(lines) for _ in range(3)]
    assert [(line.speakers[0].speaker, line.speakers_settled) for line in shown] == [
        ("A", False),
        ("A", False),
        ("B", True),
    ]
    (word,) = shown[-1].words
    assert (word.text, word.start_ms, word.end_ms, word.speaker) == ("on", 250, 750, "A")


def test_labels_are_settled_when_another_server_does_not_know_the_voices():
    """Lines of finals that were not settled yet come again."""

    def script(side):
        side.hello(speakers=True)
        side.say(_labelled(1, "on", "A", settled=True), _labelled(2, "off", "B"), {"status": "speakers_restarted"})
        side.say({"status": "speakers_unavailable", "message": "It failed."}, _labelled(3, "so", None))
        side.end()

    with servers(script) as url, LiveClient(url, LiveOptions(speakers=True)) as client:
        lines = client.lines()
        shown = [next(lines) for _ in range(3)]
        assert [(line.utterance, line.speakers_settled) for line in shown] == [(1, True), (2, False), (2, True)]
        assert client.speakers_lost == ""
        assert next(lines).utterance == 3
        assert client.speakers_lost == "It failed."


def test_a_reset_leaves_the_finals_that_came_before():
    """Words that are found later still belong to them."""
    words = [{"word": "on", "start": 0.0, "end": 1.0, "source": "aligned"}]

    def script(side):
        side.hello()
        side.say(text(1, "on", ending="pause"), text(2, "of"), {"status": "buffer_reset"})
        side.say({"utterance": 2, "words": words}, {"utterance": 1, "words": words})
        side.end()

    with servers(script) as url, LiveClient(url) as client:
        lines = client.lines()
        assert [(line.utterance, len(line.words)) for line in (next(lines), next(lines), next(lines))] == [
            (1, 0),
            (2, 0),
            (1, 1),
        ]


def test_where_a_flush_alone_ends_an_utterance_there_is_always_room(monkeypatch):
    """A client that waits for room would wait for a final that comes after the flush alone."""
    monkeypatch.setattr(live, "_BUFFER_BYTES", 100)

    def script(side):
        side.hello(endpointing="manual")
        side.hear(90)
        side.end()

    with servers(script) as url, LiveClient(url) as client:
        client.send(bytes(90))
        assert client.has_room


def test_tries_to_reach_a_server_come_less_and_less_often():
    """At most every five seconds in the end."""
    tries, delays_s = live._Tries(0.0), []
    for _ in range(8):
        delays_s.append(tries.delay_s)
        tries = tries.postponed()
    assert delays_s == [0.25, 0.5, 1.0, 2.0, 4.0, 5.0, 5.0, 5.0]


def test_a_client_that_was_closed_is_not_resumed():
    """At once, however long the caller would have waited."""

    def script(side):
        side.hello()
        side.end()

    def second(side):
        side.hello(0)
        assert side.end() == 4010

    with servers(script, second) as url:
        client = LiveClient(url)
        client.close()
        with pytest.raises(LiveError) as refused:
            client.resume_within(60)
        assert refused.value.code == "session_closed"
