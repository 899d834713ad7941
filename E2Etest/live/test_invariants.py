"""The invariants of live transcription through the real server and the real model."""

import itertools

import numpy as np
import pytest

from asr_server.net import websocket_io
from E2Etest import recordings
from E2Etest.live.session import act, data, finals, open_session, pcm_of, pieces, receive, stream, upto_flush

pytestmark = [pytest.mark.websocket, pytest.mark.integration, pytest.mark.demo_server]

_PAUSE = np.zeros(14_400, np.int16)


@pytest.mark.nightly
@pytest.mark.accuracy
def test_finals_are_the_offline_transcripts_of_the_same_audio(server):
    """Posting an utterance's audio gives its final, but where committed words decided otherwise before."""
    same = other = 0
    for clip in [c for c in recordings.clips() if c.kind in {"phrase", "digits"}][:20]:
        pcm = np.concatenate([pcm_of(clip.path), _PAUSE])
        messages = stream(server, pieces(data(pcm), 3_200))
        for text, start, end, _ in finals(messages):
            part = pcm[round(start * 16_000) : round(end * 16_000)]
            offline = server.transcribe(recordings.wav(part)).json()["text"]
            same, other = same + (offline == text), other + (offline != text)
    assert same >= 9 * other, (same, other)


def test_committed_text_is_a_prefix_of_all_that_follows(server):
    """In every utterance of dense and of paused speech."""
    for kind in ("dense", "pauses"):
        clip = next(c for c in recordings.clips() if c.kind == kind)
        committed = {}
        for message in stream(server, pieces(data(pcm_of(clip.path)), 3_200)):
            before = committed.get(message["utterance"], "")
            assert message["committed"].startswith(before)
            committed[message["utterance"]] = message["committed"]
        assert any(committed.values()), "nothing was committed"


@pytest.mark.nightly
def test_utterances_lie_behind_one_another_and_cover_what_is_loud(server):
    """No loud second of paused speech lies outside all utterances."""
    clip = next(c for c in recordings.clips() if c.kind == "pauses")
    pcm = pcm_of(clip.path)
    covered, end = np.zeros(len(pcm), bool), 0.0
    for _, start, stop, _ in finals(stream(server, pieces(data(pcm), 3_200))):
        assert start >= end
        end = stop
        covered[round(start * 16_000) : round(stop * 16_000)] = True
    power = np.square(pcm.astype(float))
    assert power[covered].sum() >= 0.995 * power.sum()


@pytest.mark.nightly
def test_forced_cuts_lose_no_sample(server):
    """Forty seconds without a pause: each utterance begins where the last was cut."""
    said = recordings.samples()
    loud = said[np.abs(said) > 30][: 2 * 16_000]
    messages = stream(server, pieces(data(np.tile(loud, 20)), 32_000))
    cut = [m for m in messages if m.get("is_final")]
    assert any(m["ending"] == "cut" for m in cut)
    for before, after in itertools.pairwise(cut):
        if before["ending"] == "cut":
            assert after["start"] == before["end"]


def test_a_partial_shows_words_before_the_speaker_is_done(server):
    """After two seconds of speech there is text, while the utterance is open."""
    with open_session(server) as socket:
        socket.send(data(recordings.samples()[: 2 * 16_000]))
        message = receive(socket)
        assert message["is_partial"]
        assert message["text"]
        act(socket, "flush")
        upto_flush(socket)


@pytest.mark.nightly
@pytest.mark.performance
@pytest.mark.timeout(180)
def test_hundreds_of_sessions_that_come_and_go_leave_no_memory_behind(server, speech):
    """After a first round, two hundred more sessions with speech change the resident memory by little."""
    loud = data(speech[: 3 * 16_000])

    def round_of(count):
        for _ in range(count):
            with open_session(server) as peer:
                peer.send(loud)
                act(peer, "flush")
                upto_flush(peer)
                # Others are kept for WS_RESUME_S, and the faster the machine, the more at a time.
                peer.close(websocket_io.DISCARD)
        return server.resident_mb()

    before = round_of(40)
    assert round_of(200) - before < 20
