"""A live session that outlives its connections, from the client's side; the server is scripted to break them."""

import json
import threading
from contextlib import suppress
from types import SimpleNamespace

import pytest
from websockets.exceptions import ConnectionClosed

from asr_server.client import live
from asr_server.client.conftest import says, servers, text
from asr_server.client.live import LiveClient, LiveError, LiveOptions

_REFUSED_CHANGE = {"error": {"message": "No.", "code": "unsupported_language", "param": "language"}, "code": "x"}


class _Yielding:
    """A lock that gives others a turn each time before it is taken, and each time it was given back."""

    def __init__(self):
        self._lock = threading.Lock()
        self.turns = []

    def __enter__(self):
        self._yield()
        self._lock.acquire()

    def __exit__(self, *_):
        self._lock.release()
        self._yield()

    def _yield(self):
        if self.turns:
            self.turns.pop(0)()


def _nothing(): ...


def _until_broken(client):
    with pytest.raises(ConnectionClosed):
        list(client.lines())


def _breaks(side):
    side.hello()
    side.hear(2)
    side.break_off()


def test_what_is_sent_during_a_resume_arrives_once_and_in_its_place(monkeypatch):
    """A sender may have its turn at any moment. An action whose call has failed is the caller's to repeat."""
    lock, heard = _Yielding(), []
    monkeypatch.setattr(live, "threading", SimpleNamespace(Lock=lambda: lock))

    def second(side):
        side.hello(2)
        side.hear(4, 1)
        heard.append((bytes(side.audio), side.actions))
        side.end()

    with servers(_breaks, second) as url, LiveClient(url) as client:

        def send(pcm):
            with suppress(ConnectionClosed):  # it is sent again
                client.send(pcm)

        client.send(b"12")
        _until_broken(client)
        with pytest.raises(ConnectionClosed):
            client.reset()
        lock.turns = [lambda: send(b"34"), _nothing, _nothing, lambda: send(b"56")]
        client.resume()
        client.flush()
    assert heard == [(b"3456", [(4, "flush")])]


def _labelled(utterance, committed, who, *, settled=False, ending="pause"):
    runs = [{"speaker": who, "text": committed}]
    return {**text(utterance, committed, ending=ending), "speakers": runs, "speakers_settled": settled}


def test_a_line_comes_again_when_its_speakers_change_until_they_are_settled():
    """Also when it is a final, and with word times that came before. A client that has lost its speakers says why."""
    runs = [{"speaker": "B", "text": "on"}]
    words = [{"word": "on", "start": 0.25, "end": 0.75, "source": "estimated", "speaker": "A"}]
    update = {"type": "speaker_update", "utterance": 1, "speakers": runs, "speakers_settled": True}
    lost = {"status": "speakers_unavailable", "message": "It failed."}
    messages = _labelled(1, "on", "A"), {"utterance": 1, "words": words}, update, lost, _labelled(2, "so", None)
    with servers(says(*messages, speakers=True)) as url, LiveClient(url, LiveOptions(speakers=True)) as client:
        lines = client.lines()
        shown = [next(lines) for _ in range(3)]
        assert client.speakers_lost == ""
        next(lines)
        assert client.speakers_lost == "It failed."
    settled = [(line.speakers[0].speaker, line.speakers_settled) for line in shown]
    assert settled == [("A", False), ("A", False), ("B", True)]
    (word,) = shown[-1].words
    assert (word.text, word.start_ms, word.end_ms, word.speaker) == ("on", 250, 750, "A")


def test_a_reset_leaves_the_finals_that_came_before():
    """Words that are found later still belong to them."""
    words = [{"word": "on", "start": 0.0, "end": 1.0, "source": "aligned"}]
    before = text(1, "on", ending="pause"), text(2, "of"), {"status": "buffer_reset"}
    late = ({"utterance": number, "words": words} for number in (2, 1))
    with servers(says(*before, *late)) as url, LiveClient(url) as client:
        found = [line for _, line in zip(range(3), client.lines(), strict=False)]
    assert [(line.utterance, len(line.words)) for line in found] == [(1, 0), (2, 0), (1, 1)]


def test_where_a_flush_alone_ends_an_utterance_there_is_always_room(monkeypatch):
    """A client that waits for room would wait for a final that comes after the flush alone."""
    monkeypatch.setattr(live, "_BUFFER_BYTES", 100)
    with servers(says(endpointing="manual")) as url, LiveClient(url) as client:
        client.send(bytes(90))
        assert client.has_room


def test_a_client_that_was_closed_is_not_resumed():
    """At once, however long the caller would have waited."""
    with servers(says(), says(received_bytes=0)) as url:
        client = LiveClient(url)
        client.close()
        with pytest.raises(LiveError) as refused:
            client.resume_within(60)
        assert refused.value.code == "session_closed"


@pytest.mark.parametrize("announced", [True, False])
def test_what_has_no_final_goes_to_a_new_session_when_its_server_shuts_down(announced):
    """The close code is enough. The new session also gets the unanswered actions and the accepted changes of the
    configuration. An interrupted utterance is transcribed again, since it may end in the middle of a word."""

    def first(side):
        side.hello()
        side.hear(96_000, 5)
        side.say(
            {"status": "configured"},
            _REFUSED_CHANGE,
            {"status": "configured"},
            text(1, "on", ending="flush"),
            text(2, "and", end=2.5, ending="close"),
        )
        side.say(*[{"status": "reconnect"}] * announced)
        side.close(1001)

    def second(side):
        assert ("session_id" in side.path, "reopened=speech" in side.path) == (False, True)
        side.hello(session_id="live_2")
        side.hear(64_004, 2)
        assert bytes(side.audio[-4:]) == b"last"
        assert side.actions == [(0, "config"), (64_000, "flush")]
        assert json.loads(side.texts[0]) == {"action": "config", "use_server_vad": False, "hotwords": ["Oder"]}
        side.say(text(1, "and then", end=2.0, ending="flush"))
        side.end()

    with servers(first, second) as url, LiveClient(url) as client:
        for change in ({"use_server_vad": False}, {"language": "xx"}, {"hotwords": ["Oder"]}):
            client.configure(**change)
        client.send(bytes(32_000))
        client.flush()
        client.send(bytes(64_000))
        client.flush()
        with pytest.raises(LiveError):
            list(client.lines())
        _until_broken(client)
        assert client.last_words.text == "and"
        client.resume_within(20)
        client.send(b"last")
        line = next(client.lines())
        assert (line.utterance, line.committed, line.start_s, line.end_s) == (2, "and then", 1.0, 3.0)
        assert (client.session_id, client.last_words) == ("live_2", None)


def test_a_new_session_knows_no_voice_of_the_one_before():
    """Existing labels are settled, new letters differ from them, and names of stored voices stay."""
    before = _labelled(1, "on", "A", settled=True), _labelled(2, "off", "B"), {"status": "reconnect"}
    after = _labelled(1, "so", "A"), _labelled(2, "then", "Ann")
    scripts = says(*before, code=1001, speakers=True), says(*after, speakers=True)
    with servers(*scripts) as url, LiveClient(url, LiveOptions(speakers=True)) as client:
        _until_broken(client)
        client.resume()
        shown = [line for _, line in zip(range(3), client.lines(), strict=False)]
        labels = [(line.utterance, line.speakers[0].speaker, line.speakers_settled) for line in shown]
        assert labels == [(2, "B", True), (3, "A2", False), (4, "Ann", False)]


def test_silence_needs_not_be_kept(monkeypatch):
    """The client asks which audio is finished, so a file that is sent fast is not held up by a full buffer."""
    monkeypatch.setattr(live, "_BUFFER_BYTES", 1_000_000)

    def script(side):
        side.hello()
        side.hear(500_000, 1)
        assert side.actions == [(500_000, "settled")]
        side.say({"status": "settled", "seconds": 15.0, "utterance": 0}, text(1, "on"))
        side.end()

    with servers(script) as url, LiveClient(url) as client:
        client.send(bytes(500_000))
        assert not client.has_room
        next(client.lines())
        assert client.has_room


@pytest.mark.parametrize("lasting", [True, False])
def test_no_session_goes_on_with_a_hole(monkeypatch, lasting):
    """Losing audio without a final is an error, in the same session and in a new one."""
    monkeypatch.setattr(live, "_BUFFER_BYTES", 4)

    def first(side):
        side.hello()
        side.hear(8)
        side.break_off() if lasting else side.close(1001)

    with servers(first, says(**{"received_bytes": 2} if lasting else {})) as url, LiveClient(url) as client:
        client.send(b"12345678")
        _until_broken(client)
        with pytest.raises(LiveError) as lost:
            client.resume_within(20)
        assert lost.value.code == "audio_lost"


def test_a_resume_is_tried_again_until_its_time_is_over():

    def first(side):
        side.hello()
        side.break_off()

    def draining(side):
        side.close(1001)

    scripts = first, draining, lambda side: side.refuse("overloaded"), draining, says(received_bytes=0)
    with servers(*scripts) as url, LiveClient(url) as client:
        _until_broken(client)
        with pytest.raises(ConnectionClosed):
            client.resume_within(0.0)
        client.resume_within(20)


def test_a_server_on_this_machine_is_reached_without_the_proxy_of_the_environment(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with servers(says(text(1, "on"))) as url, LiveClient(url) as client:
        assert next(client.lines()).text == "on"
