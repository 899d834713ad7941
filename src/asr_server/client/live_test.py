"""A live session that outlives its connections, from the client's side; the server is scripted to break them."""

import json
import threading
from contextlib import contextmanager, suppress

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import serve

from asr_server.client import live
from asr_server.client.live import LiveClient, LiveError

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
