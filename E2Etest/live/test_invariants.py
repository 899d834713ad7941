"""The invariants of live transcription through the real server and the real model."""

import numpy as np
import pytest

from E2Etest.drive import recordings
from E2Etest.drive.process import running
from E2Etest.drive.session import act, data, finals, open_session, pcm_of, pieces, stream, upto_flush

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


@pytest.mark.nightly
@pytest.mark.performance
@pytest.mark.timeout(180)
def test_hundreds_of_sessions_that_come_and_go_leave_no_memory_behind(tmp_path, speech):
    """After a first round, two hundred more sessions with speech change the resident memory by little."""
    loud = data(speech[: 3 * 16_000])

    def round_of(count):
        for _ in range(count):
            with open_session(server) as peer:
                peer.send(loud)
                act(peer, "flush")
                upto_flush(peer)
        return server.resident_mb()

    # Otherwise sessions wait for their clients, and the faster the machine, the more at a time.
    with running(tmp_path / "log", WS_RESUME_S="0") as server:
        before = round_of(40)
        assert round_of(200) - before < 20
