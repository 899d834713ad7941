"""Live sessions whose servers are replaced, or die, while people speak: each word is there once."""

import time

import pytest

from E2Etest.replicas.rig import balanced
from E2Etest.replicas.speaker import Speaker, check

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.integration,
    pytest.mark.websocket,
    pytest.mark.slow,
    pytest.mark.timeout(900),
]

SPEAKERS = 3


@pytest.fixture
def demo():
    """The settings of servers with the demonstration model."""
    return {"MODEL_ID": "demo", "PRELOAD": "true", "IDLE_TIMEOUT": "0", "API_KEYS": "sk-replicas"}


@pytest.mark.guarantee("moves")
def test_a_rolling_update_moves_live_sessions(tmp_path, demo, measured):
    """No word is lost or repeated, and no committed word is taken back."""
    with balanced(tmp_path, 2, **demo) as replicas:
        speakers = [Speaker(replicas) for _ in range(SPEAKERS)]
        try:
            assert replicas.roll() == [0, 0]
        finally:
            for speaker in speakers:
                speaker.end()
    check(speakers)
    measured("moved_s", max(speaker.longest_silence_s for speaker in speakers))


@pytest.mark.guarantee("moves")
def test_live_sessions_go_on_where_their_server_dies(tmp_path, demo, measured):
    """SIGKILL to one server after the other, with a new one between: no word is lost or doubled, and no committed word
    is taken back."""
    with balanced(tmp_path, 2, **demo) as replicas:
        speakers = [Speaker(replicas) for _ in range(SPEAKERS)]
        try:
            for place in list(replicas.servers):
                time.sleep(2)
                replicas.kill(place)
                replicas.start()
        finally:
            for speaker in speakers:
                speaker.end()
    check(speakers)
    assert all(speaker.resumed for speaker in speakers)
    measured("resumed_s", max(speaker.longest_silence_s for speaker in speakers))
