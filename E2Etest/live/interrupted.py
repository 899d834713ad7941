"""Live sessions in the middle of which a process of the server is killed, and what holds for them nevertheless."""

from __future__ import annotations

import threading
import time

import numpy as np

from E2Etest.drive.procfs import kill_engine
from E2Etest.drive.session import act, open_session, pieces, upto_flush

PIECE = 3_200  # 0.1 s


def kept(messages):
    """Return the number, the text and the ending of each final."""
    return [(m["utterance"], m["text"], m["ending"]) for m in messages if m.get("is_final")]


def times(messages):
    """Return the beginning and the end of each final, in seconds (n, 2)."""
    return np.array([(m["start"], m["end"]) for m in messages if m.get("is_final")])


def laws(messages):
    """Assert what holds for every client, whatever became of a process of the server."""
    committed, reached = {}, {}
    for message in messages:
        number = message["utterance"]
        assert message["text"] == message["committed"] + message["tentative"]
        assert message["text"].startswith(committed.get(number, ""))
        assert message["end"] >= reached.get(number, 0.0) or message["is_final"]
        committed[number], reached[number] = message["committed"], message["end"]
    numbers = [m["utterance"] for m in messages if m["is_final"]]
    assert numbers == sorted(set(numbers))


def spoken(server, body, kills, pace_s=0.03, **query):
    """Send the recording in pieces. Kill the engine process before each piece whose number is in `kills`."""
    messages = []
    with open_session(server, **query) as socket:

        def send():
            for number, piece in enumerate(pieces(body, PIECE)):
                if number in kills:
                    kill_engine(server)
                socket.send(piece)
                time.sleep(pace_s)
            act(socket, "flush")

        sender = threading.Thread(target=send)
        sender.start()
        messages = upto_flush(socket)
        sender.join()
    return messages
