"""Speakers on the live socket, with scripted ones: labels, their refinement, and their loss."""

import asyncio
from types import SimpleNamespace

import httpx
import numpy as np
import pytest

from asr_server.client.live import LiveClient, LiveOptions
from asr_server.features.speakers.diarization.conftest import ScriptedLiveSpeakers, ToneSpeakers, tone
from asr_server.features.speakers.diarization.turns import Turn
from E2Etest.drive import recordings
from E2Etest.drive.process import FIRST, SECOND
from E2Etest.drive.session import act, data, open_session, pieces, receive, stream, upto_flush

pytestmark = pytest.mark.websocket


@pytest.fixture(scope="module")
def conversation(speech):
    """The bundled recording three times, each time another speaker's, and a pause: int16 samples and the turns."""
    length_ms = len(speech) // 16
    turns = [Turn(who, place * length_ms, (place + 1) * length_ms) for place, who in enumerate((0, 1, 0))]
    return np.concatenate([speech] * 3 + [np.zeros(128_000, np.int16)]), turns


def _speakers(message):
    return [run["speaker"] for run in message["speakers"]]


def _until_settled(socket, utterances):
    messages, settled = [], set()
    while settled < set(range(1, utterances + 1)):
        messages.append(receive(socket))
        if messages[-1].get("speakers_settled"):
            settled.add(messages[-1]["utterance"])
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
        messages += _until_settled(socket, 3)
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
            identity = socket.hello["session_id"]
        with open_session(server, session_id=identity, received=99) as socket:
            assert socket.hello["speakers"] is False
    kept = ("text", "utterance", "start", "end", "ending")
    found, wanted = ([[m[name] for name in kept] for m in of if m.get("is_final")] for of in (messages, plain))
    assert found == wanted
    assert [m["status"] for m in messages if "status" in m] == ["speakers_unavailable"]
    finals = {m["utterance"]: m for m in messages if m.get("is_final")}
    assert _speakers(finals[1]) == ["A"]
    assert (_speakers(finals[3]), finals[3]["speakers_settled"]) == ([None], True)


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
                for message in _until_settled(socket, 3):
                    if message["speakers_settled"]:
                        labels[message["utterance"]] = _speakers(message)
    assert settled[FIRST] == {1: ["A"], 2: ["Ann"], 3: ["A"]}
    assert settled[SECOND] == {1: ["A"], 2: ["B"], 3: ["A"]}


def test_the_client_of_the_package_has_the_speakers_of_its_lines(start, conversation):
    """A line comes again when its speakers change."""
    audio, turns = conversation
    lines = []
    with start(speakers=ScriptedLiveSpeakers(turns, horizon_ms=3_000)) as server:
        client = LiveClient(server.base, LiveOptions(speakers=True))
        client.send(data(audio))
        for line in client.lines():
            lines.append(line)
            if line.utterance == 3 and line.speakers_settled:
                break
        client.close()
    settled = {line.utterance: line for line in lines if line.speakers_settled}
    assert {number: [run.speaker for run in line.speakers] for number, line in settled.items()} == {
        1: ["A"],
        2: ["B"],
        3: ["A"],
    }
    assert all("".join(run.text for run in line.speakers) == line.committed for line in lines)
