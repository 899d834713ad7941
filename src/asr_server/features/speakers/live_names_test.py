"""What the speakers of a live session are called. A voice is a direction; the similarity of two is their cosine."""

import numpy as np
import pytest

from asr_server.features.speakers.live_labels import LiveNames
from asr_server.features.speakers.voices import NamedVoice

ANN, BOB, CYD, DAN = np.eye(4, dtype=np.float32)
# A name that is a letter of another speaker, the fortieth, is not given.
STORED = [NamedVoice(name=name, voice_print=voice) for name, voice in (("Ann", ANN), ("Bob", BOB), ("AN", DAN))]


def _between(one, other, share):
    """A direction that is so similar to `one`."""
    return (share * one + np.sqrt(1 - share**2) * other).astype(np.float32)


LIKE_ANN, BOTH, NEAR_BOB = _between(ANN, CYD, 0.7), _between(ANN, BOB, 0.75), _between(ANN, BOB, 0.3)


@pytest.mark.parametrize(
    "steps",
    [
        # Letters are not moved up for names.
        [({0: CYD, 1: BOB, 2: DAN}, "A Bob C D")],
        # A name changes with the voice until it is settled.
        [({0: _between(ANN, BOB, 0.9)}, "Ann B"), ({0: NEAR_BOB}, "Bob B"), (0, "Bob B"), ({0: ANN}, "Bob B")],
        # A settled letter stays, and keeps its voice from others.
        [(0, "A B"), ({0: ANN, 1: _between(ANN, CYD, 0.6)}, "A B")],
        # A settled name is given to nobody else, and its speaker takes no other.
        [({0: LIKE_ANN}, "Ann B"), (0, "Ann B"), ({0: LIKE_ANN, 1: ANN}, "Ann B"), ({1: ANN}, "Ann B")],
        [({0: BOTH}, "Ann B"), (0, "Ann B"), ({0: BOTH, 1: _between(BOB, CYD, 0.6)}, "Ann Bob")],
        # The more similar speaker has the name.
        [({0: LIKE_ANN}, "Ann B"), ({0: LIKE_ANN, 1: ANN}, "A Ann")],
    ],
)
def test_names_follow_the_voices_until_they_are_settled(steps):
    """A step is the voices that are heard, by their speakers, or a speaker who is settled; and the names after it."""
    names = LiveNames()
    for step, shown in steps:
        if isinstance(step, dict):
            names.recognise(step, STORED)
        else:
            names.settle(step)
        assert " ".join(names.of(speaker) for speaker in range(len(shown.split()))) == shown
