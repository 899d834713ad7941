"""Speakers on the live socket, with scripted ones: labels, their refinement, and their loss."""

import asyncio
from types import SimpleNamespace

import httpx
import numpy as np
import pytest

from asr_server.features.speakers.diarization.conftest import ScriptedLiveSpeakers, ToneSpeakers, tone
from asr_server.features.speakers.diarization.turns import Turn
from E2Etest.drive import recordings
from E2Etest.drive.process import FIRST, SECOND
from E2Etest.drive.session import act, data, finals, open_session, pieces, receive, stream, upto_flush

pytestmark = pytest.mark.websocket


@pytest.fixture(scope="module")
def conversation(speech):
    """The bundled recording three times, each time another speaker's, and a pause: int16 samples and the turns."""
    length_ms = len(speech) // 16
    turns = [Turn(who, place * length_ms, (place + 1) * length_ms) for place, who in enumerate((0, 1, 0))]
    return np.concatenate([speech] * 3 + [np.zeros(128_000, np.int16)]), turns


def _speakers(message):
    return [run["speaker"] for run in message["speakers"]]


def _until_settled(socket):
    messages = []
    while sum(message.get("speakers_settled") is True for message in messages) < 3:
        messages.append(receive(socket))
    return messages


def test_labels_are_the_truth_when_they_are_settled_and_settled_ones_never_change(start, conversation):
    """Every turn is doubted at first. The texts of the runs are the committed text in every message."""
    audio, turns = conversation
    body, end = data(audio), 32 * turns[0].end_ms
    speakers = ScriptedLiveSpeakers(turns, doubt_ms=5_500, horizon_ms=6_000)
    with start(speakers=speakers) as server, open_session(server, speakers="true") as socket:
        assert socket.hello["speakers"] is True
        socket.send(body[:end])
        messages = [receive(socket)]
        while _speakers(messages[-1]) != ["J"]:
            messages.append(receive(socket))
        socket.send(body[end:])
        messages += _until_settled(socket)
    committed, settled = {}, {}
    for message in messages:
        number = message["utterance"]
        if "committed" in message:
            committed[number] = message["committed"]
        else:
            assert message["type"] == "speaker_update"
        assert "".join(run["text"] for run in message["speakers"]) == committed[number]
        assert number not in settled
        if message["speakers_settled"]:
            settled[number] = _speakers(message)
    assert settled == {1: ["A"], 2: ["B"], 3: ["A"]}


@pytest.mark.slow("streams a conversation of real length")
def test_words_have_the_speakers_of_their_text(start, conversation):
    """Also those that were aligned after the final."""
    audio, turns = conversation
    with start(speakers=ScriptedLiveSpeakers(turns)) as server:
        messages = stream(server, pieces(data(audio), 8_000), speakers="true", words="accurate")
    timed = {m["utterance"]: {word["speaker"] for word in m["words"]} for m in messages if "words" in m}
    assert (timed[1], timed[2]) == ({"A"}, {"B"})


@pytest.mark.slow("streams a conversation of real length")
def test_a_lost_process_is_reported_and_takes_no_word_away(start, conversation):
    """The texts and times are those of a session without speakers, and a client that comes back is told."""
    audio, turns = conversation
    with start(speakers=ScriptedLiveSpeakers(turns, fails_ms=turns[1].end_ms)) as server:
        plain = stream(server, pieces(data(audio), 8_000))
        with open_session(server, speakers="true") as socket:
            for piece in pieces(data(audio), 8_000):
                socket.send(piece)
            act(socket, "flush")
            messages = upto_flush(socket)
        with open_session(server, session_id=socket.hello["session_id"], received=99) as again:
            assert again.hello["speakers"] is False
    assert finals(messages) == finals(plain)
    assert [m["status"] for m in messages if "status" in m] == ["speakers_unavailable"]
    whose = {m["utterance"]: (_speakers(m), m["speakers_settled"]) for m in messages if m.get("is_final")}
    assert (whose[1][0], whose[3]) == (["A"], ([None], True))


@pytest.mark.slow("streams a conversation of real length")
def test_a_stored_voice_names_its_person_for_the_key_that_stored_it_and_for_no_other(start, conversation):
    """In place of the letter, before the label is settled."""
    audio, turns = conversation
    ann = tone(440, 3)
    (voice,) = asyncio.run(ToneSpeakers().diarize(ann / np.float32(32_768))).voice_prints
    speakers = ScriptedLiveSpeakers(turns, voices={1: voice}, voice_ms=1_000, horizon_ms=6_000)
    settled = {FIRST: {}, SECOND: {}}
    with start(speakers=speakers, API_KEYS=f"{FIRST},{SECOND}") as server:
        form = {"data": {"name": "Ann", "consent": "a test"}, "files": {"file": ("a.wav", recordings.wav(ann))}}
        headers = {"Authorization": f"Bearer {FIRST}"}
        assert httpx.post(f"{server.base}/v1/speakers", headers=headers, **form).status_code == 201
        for key, labels in settled.items():
            caller = SimpleNamespace(key=key, live_url=server.live_url)
            with open_session(caller, speakers="true") as socket:
                socket.send(data(audio))
                for message in _until_settled(socket):
                    if message["speakers_settled"]:
                        labels[message["utterance"]] = _speakers(message)
    assert settled[FIRST] == {1: ["A"], 2: ["Ann"], 3: ["A"]}
    assert settled[SECOND] == {1: ["A"], 2: ["B"], 3: ["A"]}
