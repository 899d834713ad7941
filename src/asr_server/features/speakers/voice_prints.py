"""Computes the voice print of a recording of one person, and refuses recordings that would give a wrong one."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from asr_server.core.errors import InvalidInput
from asr_server.features.speakers import reference_audio
from asr_server.features.speakers.diarization.clustering import mean_voice
from asr_server.features.speakers.diarization.turns import Diarization, SpeakerCount, VoicePrint
from asr_server.features.speakers.voices import similarities

if TYPE_CHECKING:
    from asr_server.audio.decode import Decoder, Source
    from asr_server.features.speakers.diarization.client import SpeakerClient

MIN_RECORDING_S, MAX_RECORDING_S = 2.0, 60.0
# A voice cannot be recognised from less speech than this. From a second voice, less may be a word of agreement.
_LEAST_SPEECH_MS = _OTHER_SPEECH_MS = 1_000
# Less similar voices belong to different people. Short recordings of one person may be less similar than `SAME_VOICE`:
# with 2 s each, one pair in seven is, and one in thirty is even less similar than this; with 4 s, none is.
OTHER_VOICE = 0.35


async def voice_print(speakers: SpeakerClient, decoder: Decoder, recording: Source, caller: str) -> VoicePrint:
    """Return a recording's voice print. Raises `invalid_reference`, `SpeakersUnavailable`, and as the decoder does."""
    samples = await reference_audio.decoded(decoder, recording, caller, (MIN_RECORDING_S, MAX_RECORDING_S))
    # If the diariser counts the speakers itself, it takes two people for one if both say little. If it must find two,
    # it divides the speech of one person into two similar voices.
    return _only_voice(await speakers.diarize(samples, SpeakerCount(at_least=2)))


def _only_voice(found: Diarization) -> VoicePrint:
    """Return the print of the one person who speaks.

    Raises `invalid_reference` if there is none, or if a second one says more than a word.
    """
    spoken_ms = Counter[int]()
    for turn in found.turns:
        spoken_ms[turn.speaker] += turn.end_ms - turn.start_ms
    if spoken_ms.total() < _LEAST_SPEECH_MS or not found.voice_prints:
        raise InvalidInput("The recording has less than 1 s of speech.", code="invalid_reference")
    speakers, durations_ms = zip(*spoken_ms.most_common(), strict=True)
    prints = [found.voice_prints[speaker] for speaker in speakers]
    is_other = similarities(prints[:1], prints)[0] < OTHER_VOICE
    if any(ms >= _OTHER_SPEECH_MS for ms, other in zip(durations_ms, is_other, strict=True) if other):
        raise InvalidInput(
            "The recording has more than one voice: send one in which only one person speaks.",
            code="invalid_reference",
        )
    return mean_voice(np.stack(prints), np.where(is_other, 0, durations_ms))
