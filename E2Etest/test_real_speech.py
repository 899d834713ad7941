"""Recordings of real people through the whole server, with the English model that comes with it."""

import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from wyoming.info import Describe, Info

from asr_server.features.moonshine import package
from E2Etest.drive import recordings
from E2Etest.drive.process import ready, refusal
from E2Etest.drive.session import data, finals, open_session, pcm_of, pieces, stream
from E2Etest.live.interrupted import laws
from E2Etest.realtime import session as realtime
from E2Etest.wyoming.client import connected, heard
from E2Etest.wyoming.conftest import bridged

pytestmark = [pytest.mark.accuracy, pytest.mark.integration]

PAUSE = np.zeros(20_000, np.int16)


@pytest.fixture(scope="module")
def english(tmp_path_factory):
    """A server with the English model loaded."""
    with ready(tmp_path_factory.mktemp("english") / "log", MODEL_ID=package.MODEL_ID) as server:
        yield server


@pytest.fixture(scope="module")
def kennedy():
    """The recording of one sentence."""
    (clip,) = recordings.real_clips("jfk")
    return clip


def _errors(text, clip):
    return recordings.word_errors(recordings.plain_words(clip.text), recordings.plain_words(text))


@pytest.mark.parametrize(
    ("kind", "most_errors", "words"),
    [
        ("jfk", 0, 22),
        pytest.param("librivox", 3, 70, marks=pytest.mark.nightly),
        pytest.param("phone", 4, 113, marks=pytest.mark.nightly),
    ],
)
def test_words_of_real_people(english, kind, most_errors, words):
    """A speech, a reader, telephone prompts."""
    clips = recordings.real_clips(kind)
    assert abs(sum(len(recordings.plain_words(clip.text)) for clip in clips) - words) <= 8
    answers = [english.transcribe(clip.path.read_bytes()).json() for clip in clips]
    assert sum(_errors(answer["text"], clip) for answer, clip in zip(answers, clips, strict=True)) <= most_errors
    assert {answer["language_code"] for answer in answers} == {"en"}
    if kind == "jfk":
        assert (answers[0]["text"][0], answers[0]["text"][-1]) == ("A", ".")


def test_words_have_times_from_the_audio(english, kennedy):
    """In order and inside the recording; the pause of a second behind "ask not" is where the speaker made it."""
    asked = {"response_format": "verbose_json", "timestamp_granularities[]": "word"}
    body = english.transcribe(kennedy.path.read_bytes(), **asked).json()
    times = [at for word in body["words"] for at in (word["start"], word["end"])]
    assert times == sorted(times)
    assert 0 <= times[0] <= times[-1] <= kennedy.seconds
    assert {word["source"] for word in body["words"]} == {"aligned"}
    pauses = [(a["word"], b["word"]) for a, b in pairwise(body["words"]) if b["start"] - a["end"] > 0.9]
    assert ("not", "what") in pauses


@pytest.mark.nightly
def test_what_the_model_cannot_do_is_said(english, kennedy):
    """Another language is refused, and a prompt is ignored with a warning."""
    audio = kennedy.path.read_bytes()
    refused = english.transcribe(audio, language="de")
    assert refusal(refused) == (400, "unsupported_language", "language")
    with open_session(english, language="de") as socket:
        assert socket.hello["code"] == "unsupported_language"
    hinted = english.transcribe(audio, response_format="verbose_json", prompt="Kennedy", hotwords="country").json()
    assert hinted["warnings"][0].startswith("prompt and hotwords are ignored")


def test_live_words_are_right_and_none_is_taken_back(english):
    """Every committed text begins with the one before, while spelling and punctuation of later words change."""
    for clip in recordings.real_clips("librivox_0920", "phone_confbridge"):
        pcm = np.concatenate([pcm_of(clip.path), PAUSE])
        messages = stream(english, pieces(data(pcm), 16_000))
        laws(messages)
        assert _errors(" ".join(text for text, *_ in finals(messages)), clip) <= 2
        assert any(message["committed"] for message in messages)


def _has_both(text):
    """Return True if it has the words of both recordings once."""
    words = recordings.plain_words("he was not an ill disposed young man")
    said = recordings.plain_words(re.sub("[0-9]", "", text))
    return re.sub("[^0-9]", "", text) == "865230" and recordings.word_errors(words, said) <= 2


@pytest.mark.parametrize(
    "detection",
    [
        pytest.param(None, id="commit"),
        pytest.param({"type": "semantic_vad", "eagerness": "low"}, id="semantic", marks=pytest.mark.nightly),
        pytest.param({"type": "server_vad", "silence_duration_ms": 8_000}, id="server", marks=pytest.mark.nightly),
    ],
)
def test_a_realtime_turn_with_a_long_pause_has_the_words_of_both_sentences_once(english, detection):
    """Six digits, 5 s of silence and a sentence, in one turn or, by semantic_vad behind a sentence, two; deltas joined
    are the transcript. The model loses the digits if it hears all of it at once."""
    second, first = recordings.real_clips("librivox_0880", "digits_george_0")
    with_a_hole = np.concatenate([pcm_of(first.path), np.zeros(80_000, np.int16), pcm_of(second.path)])
    with realtime.open_session(english) as talk:
        talk.update(turn_detection=detection)
        talk.say(realtime.pcm24(with_a_hole))
        talk.commit()
        talk.until(realtime.COMPLETED)
        ((_, first),) = realtime.texts(talk.events).values()
        if not _has_both(first):  # a sentence mark ends a turn by semantic_vad
            talk.until(realtime.COMPLETED)
    texts = realtime.texts(talk.events).values()
    assert _has_both(" ".join(transcript for _, transcript in texts))
    assert all(joined == transcript for joined, transcript in texts)


@pytest.mark.slow("transcribes real speech with a real model")
async def test_a_voice_assistant(english, kennedy):
    """Nearly the same words through the Wyoming bridge."""
    with bridged(english.base) as port:
        async with connected(port) as client:
            await client.write_event(Describe().event())
            assert Info.from_event(await client.read_event()).asr[0].models[0].languages == ["en"]
        found = await heard(port, data(pcm_of(kennedy.path)), language="en")
    assert _errors(found.text, kennedy) <= 2  # every pause ends an utterance, so words at its ends lack context
    assert found.language == "en"


def test_the_process_is_small(english, kennedy):
    """No torch in it, and under 450 MB with its decoders, after all the work above."""
    english.transcribe(kennedy.path.read_bytes())
    assert "torch" not in Path(f"/proc/{english.process.pid}/maps").read_text()
    assert english.resident_mb() < 450
