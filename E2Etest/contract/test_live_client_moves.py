"""The Python client over two servers behind one address: one goes, the other goes on with the session."""

import random
import threading
import time
from contextlib import ExitStack, contextmanager, suppress

import numpy as np
import pytest

from asr_server.client.live import ConnectionClosed, LiveClient, LiveOptions
from E2Etest.live.session import data, finals, stream
from E2Etest.proxy import Proxy

pytestmark = pytest.mark.websocket

_CHUNK_BYTES = 3_200
_PATIENT = {"HANDOVER_S": "10"}  # the machine may be busy with other tests
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


def _send(client, body, pause_s=0.0):
    for at in range(0, len(body), _CHUNK_BYTES):
        client.send(body[at : at + _CHUNK_BYTES])
        time.sleep(pause_s)


def test_a_server_that_shuts_down_is_left_in_the_middle_of_a_word(start, talk):
    """The sender sees no error, the reader no cut, and lines and times are those of one server."""
    body = data(talk)
    middle = len(body) // 2 - 20_001  # in the middle of a sample
    with start(**_PATIENT) as last, start() as following, _session((last, following)) as (proxy, client, reader):
        whole = finals(stream(following, [body]))
        _send(client, body[:middle])
        proxy.target = following.port
        last.begin_to_stop()
        _send(client, body[middle:], pause_s=0.01)
        client.flush()
        assert reader.found() == whole
        assert reader.cuts == 0
        assert client.hello["continued"] is True


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(8))
def test_servers_that_come_and_go_while_somebody_speaks(start, talk, seed):
    """Each shuts down or is cut off at a random place. The lines are those of one server; times may differ by some
    frames of 32 ms, since each server detects speech anew."""
    rng = random.Random(seed)
    body = data(np.concatenate([talk, talk]))
    places = sorted(rng.sample(range(1, len(body)), 4))
    with ExitStack() as stack:
        first = stack.enter_context(start(**_PATIENT))
        proxy, client, reader = stack.enter_context(_session([first], words="fast"))
        whole = finals(stream(first, [body], words="fast"))
        servers = [first]
        for begin, end in zip([0, *places], [*places, len(body)], strict=True):
            _send_through(client, body[begin:end], rng)
            if end == len(body):
                break
            servers.append(stack.enter_context(start(**_PATIENT)))
            proxy.target = servers[-1].port
            if rng.random() < 0.5:
                servers[-2].begin_to_stop()
            else:
                proxy.cut()
        reader.flush()
        found = reader.found()
        assert [(text, ending) for text, _, _, ending in found] == [(text, ending) for text, _, _, ending in whole]
        times, expected = ([line[1:3] for line in lines] for lines in (found, whole))
        assert np.allclose(times, expected, atol=0.1, rtol=0)


def _send_through(client, body, rng):
    for at in range(0, len(body), _CHUNK_BYTES):
        while True:
            try:
                client.send(body[at : at + _CHUNK_BYTES])
            except ConnectionClosed:  # the audio is kept
                time.sleep(0.01)
            break
        time.sleep(rng.random() * 0.01)
