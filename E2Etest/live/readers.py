"""Readers of shared live sessions, and what a speaker says to them."""

import json
import time
from contextlib import contextmanager

import httpx

from E2Etest.drive.session import act, data, pieces, upto_flush

_TIMEOUT_S = 60.0


@contextmanager
def reader(server, link, **headers):
    """Yield the events of a link, read without a key."""
    with (
        httpx.Client(base_url=server.base, timeout=_TIMEOUT_S, verify=False) as client,
        client.stream("GET", link["events"], headers=headers) as response,
    ):
        yield events(response) if response.status_code == 200 else error(response)


def events(response):
    """Yield the content of each event, with its id."""
    number = None
    for line in response.iter_lines():
        name, _, value = line.partition(": ")
        if name == "id":
            number = int(value)
        elif name == "data":
            yield json.loads(value) | ({"id": number} if number is not None else {})
            number = None


def error(response):
    """Return the code of the error."""
    response.read()
    return response.json()["error"]["code"]


def share(server, socket, **body):
    """Return a new link to the session of this socket."""
    answer = server.client.post(f"/v1/live/{socket.hello['session_id']}/share", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def say(socket, speech, pace_s=0.0):
    """Say it in one utterance, and return the text. `pace_s`: a pause after each tenth of a second of audio."""
    for piece in pieces(data(speech), 3_200):
        socket.send(piece)
        time.sleep(pace_s)
    act(socket, "flush")
    return "".join(m["text"] for m in upto_flush(socket) if m.get("is_final"))


def until(found, kind):
    """Return the events up to the first of this type."""
    seen = []
    for event in found:
        seen.append(event)
        if event.get("type") == kind:
            return seen
    raise AssertionError(seen)
