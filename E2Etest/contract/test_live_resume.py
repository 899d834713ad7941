"""Connections that break: nothing that arrived is lost, nothing is said twice."""

import random

import numpy as np
import pytest

from asr_server.client.live import LiveClient
from E2Etest.drive.session import data, finals, stream

pytestmark = pytest.mark.websocket


@pytest.mark.guarantee("resume")
@pytest.mark.timeout(300)
def test_fifty_cuts_in_the_middle_of_speech_lose_and_double_nothing(live_server, talk, note):
    """The client reconnects each time and goes on at the byte that the server had reached."""
    body = data(np.concatenate([talk, talk]))
    whole = finals(stream(live_server, [body]))
    rng = random.Random(3)
    places, reached = sorted(rng.sample(range(1, len(body)), 50)), []
    client, lines = LiveClient(live_server.base), {}
    for start, end in zip([0, *places], [*places, len(body)], strict=True):
        client.send(body[start:end])
        if end < len(body):
            if rng.random() < 0.5:
                lines |= {line.utterance: line for line in client.lines(wait_s=0.02)}
            client.cut()
            client.resume()
            reached.append(int(client.hello["received_bytes"]))
    client.flush()
    for line in client.lines():
        lines[line.utterance] = line
        if line.ending == "flush":
            break
    client.close()
    found = [(n.text, n.start_s, n.end_s, n.ending) for _, n in sorted(lines.items()) if n.text]
    assert found == whole
    assert reached == sorted(reached)
    words = sum(len(text.split()) for text, *_ in whole)
    note(f"{len(places)} interruptions, {words} words in {len(whole)} utterances: same words, same times")
