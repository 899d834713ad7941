"""The Python client over two servers behind one address: one goes, the other goes on with the session."""

import random
import threading
import time
from contextlib import ExitStack, contextmanager, suppress

import numpy as np
import pytest

from asr_server.client.live import ConnectionClosed, LiveClient, LiveOptions
from E2Etest.drive.session import data, finals, stream
from E2Etest.proxy import Proxy

pytestmark = pytest.mark.websocket

_CHUNK_BYTES = 3_200
_WAIT_S = 120


class _Reader(threading.Thread):
    """Reads the lines up to that which answers a flush. `lines`: the last one of each utterance."""

    def __init__(self, client):
        super().__init__(daemon=True)
        self.client, self.lines, self.cuts, self.faults = client, {}, 0, []
        self.all_sent = threading.Event()
        self.start()

    def run(self):
        while True:
            try:
                for line in self.client.lines():
                    self._check(line)
                    self.lines[line.utterance] = line
                    if line.ending == "flush":
                        return
                self.faults.append("the lines ended before the last one")
                return
            except ConnectionClosed:
                self.cuts += 1
                self.client.resume_within(_WAIT_S)
                if self.all_sent.is_set():  # the flush may not have arrived
                    with suppress(ConnectionClosed):
                        self.client.flush()

    def flush(self):
        """Ask for the last line, now or when the session has been resumed."""
        self.all_sent.set()
        with suppress(ConnectionClosed):
            self.client.flush()

    @property
    def has_words(self):
        """True if the open line has committed words."""
        return any(line.committed and not line.final for line in list(self.lines.values()))

    def _check(self, line):
        before = self.lines.get(line.utterance)
        if before is None:
            return
        if not line.committed.startswith(before.committed):
            self.faults.append(f"taken back: {before.committed!r}, then {line.committed!r}")
        if before.final and not line.words:
            self.faults.append(f"a second final: {line}")

    def found(self):
        """What a client keeps, empty lines left out."""
        self.join(_WAIT_S)
        assert not self.is_alive(), self.lines
        assert self.faults == []
        return [(n.text, n.start_s, n.end_s, n.ending) for _, n in sorted(self.lines.items()) if n.text]


@contextmanager
def _session(servers, **options):
    with Proxy(servers[0].port) as proxy, LiveClient(proxy.base, LiveOptions(**options)) as client:
        yield proxy, client, _Reader(client)


def _words(lines):
    return " ".join(text for text, *_ in lines).split()


def _change(servers, proxy, start, stack, *, dies):
    """Put another server at the address. The one before it is killed, or shuts down."""
    servers.append(stack.enter_context(start()))
    proxy.target = servers[-1].port
    if dies:
        proxy.cut()
    else:
        servers[-2].begin_to_stop()


@pytest.mark.slow("moves a session between two servers")
@pytest.mark.parametrize("dies", [False, True])
def test_the_next_server_says_what_the_last_one_has_not(start, talk, dies):
    """Together they say each word once, with the utterance numbers and times of one session. The new server transcribes
    an interrupted utterance again."""
    body = data(talk)
    with ExitStack() as stack:
        servers = [stack.enter_context(start())]
        proxy, client, reader = stack.enter_context(_session(servers))
        whole = finals(stream(servers[0], [body]))
        sent = 0
        while not reader.has_words:  # committed, of the open line
            client.send(body[sent : sent + _CHUNK_BYTES])
            sent += _CHUNK_BYTES
            time.sleep(0.02)
        _change(servers, proxy, start, stack, dies=dies)
        _send_through(client, body[sent:], random.Random(1))
        reader.flush()
        found = reader.found()
    assert [text for text, *_ in found] == [text for text, *_ in whole]
    times, expected = ([line[1:3] for line in lines] for lines in (found, whole))
    assert np.allclose(times, expected, atol=0.1, rtol=0)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(8))
def test_servers_that_come_and_go_while_somebody_speaks(start, talk, seed):
    """Each server shuts down or is killed at a random moment. No word is lost or said twice."""
    rng = random.Random(seed)
    body = data(np.concatenate([talk, talk]))
    places = sorted(rng.sample(range(1, len(body)), 4))
    with ExitStack() as stack:
        servers = [stack.enter_context(start())]
        proxy, client, reader = stack.enter_context(_session(servers, words="fast"))
        whole = finals(stream(servers[0], [body], words="fast"))
        for begin, end in zip([0, *places], [*places, len(body)], strict=True):
            _send_through(client, body[begin:end], rng)
            if end < len(body):
                _change(servers, proxy, start, stack, dies=rng.random() < 0.5)
        reader.flush()
        found = reader.found()
    assert _words(found) == _words(whole)


def _send_through(client, body, rng):
    for at in range(0, len(body), _CHUNK_BYTES):
        while True:
            try:
                client.send(body[at : at + _CHUNK_BYTES])
            except ConnectionClosed:  # the audio is kept
                time.sleep(0.01)
            break
        time.sleep(rng.random() * 0.01)
