"""The Python client over two servers behind one address: one goes, the other goes on with the session."""

import threading
import time
from contextlib import suppress

import numpy as np
import pytest

from asr_server.client.live import ConnectionClosed, LiveClient
from E2Etest.drive.session import data, finals, pieces, stream
from E2Etest.proxy import Proxy

pytestmark = pytest.mark.websocket

_WAIT_S = 120


class _Reader(threading.Thread):
    """Reads the lines up to the one that answers a flush. `lines`: the last one of each utterance."""

    def __init__(self, client):
        super().__init__(daemon=True)
        self.client, self.lines, self.faults = client, {}, []
        self.all_sent = threading.Event()
        self.start()

    def run(self):
        while True:
            try:
                for line in self.client.lines():
                    before = self.lines.get(line.utterance, line)
                    if not line.committed.startswith(before.committed) or (before is not line and before.final):
                        self.faults.append((before, line))  # words are taken back, or come twice
                    self.lines[line.utterance] = line
                    if line.ending == "flush":
                        return
                self.faults.append("the lines ended before the last one")
                return
            except ConnectionClosed:
                self.client.resume_within(_WAIT_S)
                if self.all_sent.is_set():  # the flush may not have arrived
                    self.flush()

    def flush(self):
        """Ask for the last line, now or when the session has been resumed."""
        self.all_sent.set()
        with suppress(ConnectionClosed):
            self.client.flush()


@pytest.mark.slow("moves a session between two servers")
@pytest.mark.parametrize("dies", [False, True])
def test_the_next_server_says_what_the_last_one_has_not(start, talk, dies):
    """Together they say each word once, with the utterance numbers and times of one session. The new server transcribes
    an interrupted utterance again."""
    chunks = iter(pieces(data(talk), 3_200))
    with start() as first, start() as second, Proxy(first.port) as proxy, LiveClient(proxy.base) as client:
        whole = finals(stream(first, [data(talk)]))
        reader = _Reader(client)
        while not any(line.committed and not line.final for line in list(reader.lines.values())):
            client.send(next(chunks))
            time.sleep(0.02)
        proxy.target = second.port
        if dies:
            proxy.cut()
        else:
            first.begin_to_stop()
        for chunk in chunks:
            with suppress(ConnectionClosed):  # the audio is kept
                client.send(chunk)
            time.sleep(0.01)
        reader.flush()
        reader.join(_WAIT_S)
        assert not reader.is_alive(), reader.lines
    assert reader.faults == []
    found = [(line.text, line.start_s, line.end_s) for _, line in sorted(reader.lines.items()) if line.text]
    assert [text for text, *_ in found] == [text for text, *_ in whole]
    assert np.allclose([times for _, *times in found], [times[:2] for _, *times in whole], atol=0.1, rtol=0)
