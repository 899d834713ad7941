"""The speakers of a live session over scripted ones: slow, dead or wrong, they cost no word and no time."""

import asyncio
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from asr_server.core.transcript import SpeakerRun
from asr_server.features.speakers import session_speakers as module
from asr_server.features.speakers.diarization.conftest import ScriptedLiveSpeakers
from asr_server.features.speakers.diarization.turns import Turn
from asr_server.features.speakers.live_labels import UtteranceSpeakers
from asr_server.features.speakers.session_speakers import SessionSpeakers, read_opening
from asr_server.features.speakers.voices import EnrolledVoice, VoiceStore
from asr_server.live.conftest import Scripted, opened, until
from asr_server.live.machine.events import Audio, Ending, Final, Flush, Partial, ResetDone
from asr_server.live.outbox import Outgoing

_NO_VOICES = VoiceStore(Path("/nonexistent"))


def _parts(source, voices=_NO_VOICES, owner=""):
    socket = Mock(**{"state.caller.owner": owner})
    return (read_opening(source, voices, socket, Mock(speakers=True, session_id="")),)


def _runs(speakers):
    return [(run.speaker, run.text) for run in speakers.runs]


async def _until(connection, found):
    """The messages up to the first for which `found` says so."""
    outgoing = []
    async with asyncio.timeout(20):
        async for each in connection.messages():
            outgoing.append(each)
            if found(each):
                break
    return outgoing


@pytest.mark.slow("waits for a process that does not answer")
async def test_a_silent_process_costs_no_word_and_is_reported_once(make, speech):
    """All finals come; labels given before stay, and later words have none. (contract/test_live_speakers.py has one
    that is lost.)"""
    speakers = ScriptedLiveSpeakers([Turn(0, 0, 600_000)], horizon_ms=0, hangs_ms=len(speech) // 32 + 500)
    connection = await opened(make(Scripted(lambda item: "words")), parts=_parts(speakers))
    await connection.send(Audio(speech))
    first = (await _until(connection, lambda out: isinstance(out.message, Final)))[-1]
    await until(lambda: speakers.sessions[0].samples >= len(speech) // 2 - 9_600)
    for _ in range(2 * module.MAX_WAITING_SAMPLES // (len(speech) // 2)):
        await connection.send(Audio(speech))
    await connection.send(Flush())
    rest = await _until(connection, lambda out: getattr(out.message, "ending", None) is Ending.FLUSH)
    finals = [out for out in rest if isinstance(out.message, Final) and out.message.text]
    assert len(finals) >= 2 * module.MAX_WAITING_SAMPLES // (len(speech) // 2)
    assert _runs(finals[-1].details) == [(None, "words")]
    assert finals[-1].details.settled
    assert [type(out.message) for out in rest].count(module.SpeakersLost) == 1
    labelled = [each for out in [first, *rest] if isinstance(each := out.details or out.message, UtteranceSpeakers)]
    assert "A" in {run.speaker for each in labelled for run in each.runs}
    await until(lambda: speakers.sessions[0].closed)
    connection.session.end()


_ANN = EnrolledVoice(name="Ann", voice_print=np.eye(4, dtype=np.float32)[0], model="tones", consent="a test")


async def _settled_labels(make, speech, store, owner):
    """Who spoke in a session of one person with Ann's voice."""
    speakers = ScriptedLiveSpeakers([Turn(0, 0, 60_000)], voices={0: _ANN.voice_print}, horizon_ms=8_000)
    live = make(Scripted(lambda item: "good morning"))
    connection = await opened(live, parts=_parts(speakers, store, owner))
    await connection.send(Audio(speech + bytes(12 * 32_000)))
    outgoing = await _until(connection, lambda out: getattr(out.message, "settled", False))
    connection.session.end()
    return [run.speaker for run in outgoing[-1].message.runs]


async def test_a_stored_voice_names_its_person_and_is_read_once_for_each_new_voice(make, speech, tmp_path):
    """Of the session's owner, and made by the model that tells the speakers apart."""
    store = VoiceStore(tmp_path)
    store.put("owner", _ANN)
    store.voices = Mock(wraps=store.voices)
    assert await _settled_labels(make, speech, store, "owner") == ["Ann"]
    store.voices.assert_called_once_with("owner")
    assert await _settled_labels(make, speech, store, "another") == ["A"]
    store.put("owner", replace(_ANN, model="another"))
    assert await _settled_labels(make, speech, store, "owner") == ["A"]


async def test_where_voices_cannot_be_read_speakers_have_letters(make, speech, tmp_path):
    (tmp_path / "speakers").mkdir()
    (tmp_path / "speakers" / "owner").symlink_to("owner")
    assert await _settled_labels(make, speech, VoiceStore(tmp_path), "owner") == ["A"]


async def test_a_discarded_utterance_has_no_labels_that_could_change():
    part = SessionSpeakers(ScriptedLiveSpeakers([]), _NO_VOICES.voices, lambda message: None)
    part.completed(Outgoing(Partial(1, "one two", "", "English", 0, 16_000), 0))
    part.completed(Outgoing(ResetDone(1)))
    assert part.labels.on_turns([Turn(0, 0, 1_000)], 0) == []
    part.close()


async def test_a_client_that_comes_back_gets_the_labels_that_its_finals_have_now(make, speech):
    connection = await opened(make(Scripted(lambda item: "one two")), parts=_parts(ScriptedLiveSpeakers([])))
    session = connection.session
    await connection.send(Audio(speech))
    await connection.send(Flush())
    final = (await _until(connection, lambda out: isinstance(out.message, Final)))[-1].message
    session.send(UtteranceSpeakers(final.utterance, (SpeakerRun("B", final.text),), True))
    again = session.connect(final.utterance)
    session.end()
    messages = [sent.message async for sent in again.messages()]
    (update,) = [message for message in messages if isinstance(message, UtteranceSpeakers)]
    assert (update.utterance, _runs(update), update.settled) == (final.utterance, [("B", final.text)], True)
