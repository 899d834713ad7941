"""Names of the speakers of a recording: the caller's first, then those of stored voices, then letters."""

from types import SimpleNamespace

import numpy as np

from asr_server.features.speakers.diarization.turns import label
from asr_server.features.speakers.speaker_names import RecordingNames, lettered
from asr_server.features.speakers.voices import NamedVoice

ANN, BOB, EVE, TOM = np.eye(4, dtype=np.float32)


class _Client:
    """Finds the print that stands in the samples of a channel; none in those of silence."""

    async def diarize(self, samples, count):
        assert (count.at_least, count.at_most) == (1, 1)
        return SimpleNamespace(voice_prints=(samples,) if samples.any() else ())


def _names(known=(), stored=()):
    async def read():
        return [NamedVoice(name=name, voice_print=found) for name, found in stored]

    return RecordingNames(_Client(), [NamedVoice(name=name, voice_print=found) for name, found in known], read)


def test_who_has_no_name_gets_a_letter_that_nobody_has():
    """After Z come names of two letters."""
    assert lettered(["B", None, "A", None]) == ["B", "C", "A", "D"]
    assert [label(number) for number in (0, 25, 26, 51, 52, 701)] == ["A", "Z", "AA", "AZ", "BA", "ZZ"]


async def test_the_callers_names_come_before_those_of_stored_voices():
    names = _names(known=[("Ann", ANN)], stored=[("Somebody", ANN), ("Ann", BOB), ("Eve", EVE)])
    assert await names.of([EVE, ANN, BOB, TOM]) == ["Eve", "Ann", "A", "B"]


async def test_a_channel_keeps_its_letter_where_nobody_is_recognised():
    """A name that is another channel's letter makes that one take the next that is free."""
    silence = np.zeros(4, np.float32)
    channels = {"A": ANN, "B": BOB, "C": silence}
    assert await _names().of_channels(channels) == {"A": "A", "B": "B", "C": "C"}
    assert await _names(stored=[("Bob", BOB)]).of_channels(channels) == {"A": "A", "B": "Bob", "C": "C"}
    assert await _names(stored=[("A", BOB)]).of_channels(channels) == {"A": "D", "B": "A", "C": "C"}
    named = await _names(known=[("Bob", BOB)], stored=[("Eve", BOB), ("Ann", ANN)]).of_channels(channels)
    assert named == {"A": "Ann", "B": "Bob", "C": "C"}
