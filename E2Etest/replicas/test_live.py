"""Live sessions whose servers are replaced, or die, while people speak: each word is there once."""

import time

import pytest

from E2Etest.replicas.rig import balanced
from E2Etest.replicas.speaker import Speaker, check

pytestmark = pytest.mark.websocket

SPEAKERS = 3


@pytest.mark.guarantee("moves")
@pytest.mark.parametrize("figure", ["moved_s", "resumed_s"])
def test_live_sessions_outlive_their_servers(tmp_path, measured, figure):
    """A rolling update, or SIGKILL to one server after the other, with a new one between: no word is lost or doubled,
    and no committed word is taken back."""
    settings = {"MODEL_ID": "demo", "PRELOAD": "true", "IDLE_TIMEOUT": "0", "API_KEYS": "sk-replicas"}
    with balanced(tmp_path, 2, **settings) as replicas:
        speakers = [Speaker(replicas) for _ in range(SPEAKERS)]
        try:
            if figure == "moved_s":
                assert replicas.roll() == [0, 0]
            else:
                for place in list(replicas.servers):
                    time.sleep(2)
                    replicas.kill(place)
                    replicas.start()
        finally:
            for speaker in speakers:
                speaker.end()
    check(speakers)
    assert figure == "moved_s" or all(speaker.resumed for speaker in speakers)
    measured(figure, max(speaker.longest_silence_s for speaker in speakers))
