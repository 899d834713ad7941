"""`kill -9` to the worker in the middle of speech: the session goes on, no word is lost, doubled or taken back."""

import json
import threading
import time

import numpy as np
import pytest

from E2Etest.exposition import moved, scrape
from E2Etest.gateway.workers import kill_worker
from E2Etest.live.interrupted import kept, laws, spoken, times
from E2Etest.live.session import act, data, open_session, pieces, receive, stream, upto_flush

pytestmark = [pytest.mark.websocket, pytest.mark.integration]


@pytest.fixture(scope="module")
def talk(speech):
    """The bundled recording three times, with its pauses."""
    return data(np.concatenate([speech, speech, speech]))


@pytest.fixture(scope="module")
def calm(gateway, talk):
    """What an undisturbed session says, with partials."""
    messages = spoken(gateway, talk, ())
    assert len([m for m in messages if m["is_final"] and m["text"]]) == 3
    return messages


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "kills",
    [{25}, *(pytest.param(kills, marks=pytest.mark.nightly) for kills in ({5}, {45}, {52}, {60, 61}, {10, 70, 130}))],
    ids=lambda kills: "-".join(map(str, sorted(kills))),
)
def test_a_session_survives_its_worker(gateway, talk, calm, kills):
    """At the beginning, in a word, in a pause, between utterances, twice in a row, in each of three utterances."""
    messages = spoken(gateway, talk, kills)
    laws(messages)
    assert kept(messages) == kept(calm)
    # The voice detector begins anew, which may move an edge by a frame or two.
    assert np.abs(times(messages) - times(calm)).max() <= 0.1


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_all_of_a_recording_sent_at_once_survives_too(gateway, talk, calm):
    """The worker dies with everything unheard; the lag tells how long the client has waited in all."""
    with open_session(gateway) as socket:
        socket.send(talk)
        act(socket, "flush")
        kill_worker(gateway)
        began_s = time.monotonic()
        messages = upto_flush(socket)
        waited_ms = 1000 * (time.monotonic() - began_s)
    laws(messages)
    assert [(m["text"], m["ending"]) for m in messages if m["is_final"]] == [one[1:] for one in kept(calm)]
    assert all(m["lag_ms"] >= 0.5 * waited_ms for m in messages if m["is_final"])


@pytest.mark.timeout(600)
@pytest.mark.nightly
def test_configuration_and_answers_survive(gateway, speech):
    """What was answered is not answered again; language and detector stay as they were set."""
    with open_session(gateway) as socket:
        act(socket, "config", language="en", use_server_vad=False)
        assert receive(socket)["language"] == "en"
        act(socket, "flush")
        assert receive(socket)["utterance"] == 1
        act(socket, "reset")
        assert receive(socket) == {"status": "buffer_reset"}
        kill_worker(gateway)
        act(socket, "ping")
        assert receive(socket) == {"status": "pong"}
        socket.send(data(speech))
        act(socket, "config", hotwords=["lamp"])
        act(socket, "flush")
        rest = []
        while not rest or rest[-1].get("ending") != "flush":
            rest.append(receive(socket))
        configured = [m for m in rest if "status" in m]
        assert configured == [
            {"status": "configured", "language": "en", "language_name": "English"}
            | {"use_server_vad": False, "endpointing": "manual"}
        ]
        assert [m["utterance"] for m in rest if m.get("is_final")] == [2]
        assert all("error" not in m for m in rest)


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_a_client_that_was_away_finds_its_session_after_the_crash(gateway, speech):
    """Cut off in the middle of speech, the worker killed, back again: the finals, the count of bytes, the rest."""
    from asr_server.client.live import LiveClient

    body = data(np.concatenate([speech, speech]))
    whole = [one for one in kept(stream(gateway, [body])) if one[1]]
    client, lines = LiveClient(gateway.base), {}
    client.send(body[:200_001])
    for line in client.lines():
        lines[line.utterance] = line
        if line.ending:
            break
    client.cut()
    kill_worker(gateway)
    client.resume()
    assert client.hello["resumed"] is True
    client.send(body[200_001:])
    client.flush()
    for line in client.lines():
        lines[line.utterance] = line
        if line.ending == "flush":
            break
    client.close()
    assert [(n, line.text, line.ending) for n, line in sorted(lines.items()) if line.text] == whole


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_many_sessions_survive_one_crash_without_mixing(gateway, speech):
    """Eight at once, each with its own stretch of speech, are what each is alone."""
    bodies = [data(speech[2_000 * number :]) for number in range(8)]
    alone = [kept(stream(gateway, pieces(body, 8_000))) for body in bodies]
    together = {}

    def speak(number):
        together[number] = kept(spoken(gateway, bodies[number], {20} if number == 0 else ()))

    threads = [threading.Thread(target=speak, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [together[number] for number in range(8)] == alone
    assert json.dumps(alone)


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_a_speaker_goes_first_after_a_crash(gateway, speech):
    """Also where the next worker is sent more at once than a speaker may be ahead: 12 s of the open utterance."""
    body = data(np.resize(speech, 14 * 16_000))
    before = scrape(gateway)
    spoken(gateway, body, {120}, pace_s=0.1, endpointing="manual")
    grew = moved(before, scrape(gateway))
    assert grew("asr_engine_jobs_total", priority="final", end="done") > 0
    assert [grew("asr_engine_jobs_total", priority=name) for name in ("interactive", "bulk")] == [0, 0]
