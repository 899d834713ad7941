"""Makes a stored voice of recordings in which one person speaks, and refuses recordings that would make a wrong one."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from asr_server.core.audio import samples_to_s
from asr_server.core.errors import DeadlineExceeded, InvalidInput, InvalidReference, UnsupportedValue
from asr_server.service.voices import Voice, VoiceStore, similarities
from asr_server.speakers.clustering import unit
from asr_server.speakers.turns import Diarization, SpeakerCount, VoicePrint

if TYPE_CHECKING:
    from asr_server.audio.decode import Decoder, Samples, Source
    from asr_server.speakers.client import SpeakerClient

MAX_RECORDINGS = 5
MIN_RECORDING_S, MAX_RECORDING_S = 2.0, 60.0
# Less speech than this has no voice that can be recognised; of a second voice it may be a word of agreement.
_LEAST_SPEECH_MS = _OTHER_SPEECH_MS = 1_000
# Less similar voices are of different people. Short recordings of one person may be less similar than `SAME_VOICE`: of
# 2 s each, one pair in seven is, and one in thirty is less similar than this; of 4 s none is.
_OTHER_VOICE = 0.35


@dataclass(frozen=True, slots=True)
class Candidate:
    """A voice that a caller wants to store. `owner`: of the voice. `caller`: who shares the decoders with others."""

    name: str
    consent: str
    owner: str = ""
    caller: str = ""


class Enrolment:
    """Stores voices. One at a time is computed: others wait within their time limit.

    `speakers`: or why the server does not tell speakers apart.
    """

    def __init__(
        self, speakers: SpeakerClient | str, decoder: Decoder, voices: VoiceStore, *, time_limit_s: float
    ) -> None:
        self._speakers_or_reason = speakers
        self._decoder = decoder
        self._voices = voices
        self._time_limit_s = time_limit_s
        self._computing = asyncio.Lock()

    def check(self) -> SpeakerClient:
        """Raise `UnsupportedValue` where no voice can be stored. For the time before a body is read."""
        if isinstance(self._speakers_or_reason, str):
            reason = self._speakers_or_reason
            raise UnsupportedValue(f"This server does not tell speakers apart, so it stores no voices ({reason}).")
        return self._speakers_or_reason

    async def enrol(self, candidate: Candidate, recordings: Sequence[Source]) -> Voice:
        """Store the voice of these recordings, in place of the owner's voice of that name if there is one.

        Raises `InvalidReference`, what `check` and the decoder raise, `SpeakersUnavailable`, `Overloaded` if too many
        voices are stored, and `DeadlineExceeded`.
        """
        speakers = self.check()
        await self._voices.check_room(candidate.owner, candidate.name)
        try:
            async with asyncio.timeout(self._time_limit_s), self._computing:
                prints = await self._voice_prints(speakers, recordings, candidate.caller)
        except TimeoutError:
            raise DeadlineExceeded("The voice was not computed within the server's time limit.") from None
        if (similarities(prints, prints) < _OTHER_VOICE).any():
            raise InvalidReference("The recordings are of different voices: send those of one person.", param="files")
        voice = Voice(
            name=candidate.name,
            voice_print=_mean(prints, np.ones(len(prints))),
            model=speakers.voice_model,
            consent=candidate.consent,
        )
        return await self._voices.put(candidate.owner, voice)

    async def _voice_prints(
        self, speakers: SpeakerClient, recordings: Sequence[Source], caller: str
    ) -> list[VoicePrint]:
        found = []
        for number, recording in enumerate(recordings, 1):
            try:
                found.append(await self._voice_print(speakers, recording, caller))
            except InvalidInput as error:
                which = f"Recording {number}: " if len(recordings) > 1 else ""
                raise type(error)(f"{which}{error.message}", param="files") from None
        return found

    async def _voice_print(self, speakers: SpeakerClient, recording: Source, caller: str) -> VoicePrint:
        samples = await self._decoded(recording, caller)
        # A diariser that counts by itself takes two people for one where both say little. Made to find two, it divides
        # the speech of one person into parts that are alike.
        return _only_voice(await speakers.diarize(samples, SpeakerCount(at_least=2)))

    async def _decoded(self, recording: Source, caller: str) -> Samples:
        """(n,) float32 of a recording of the length that is allowed; a longer one is not decoded to its end."""
        blocks: list[Samples] = []
        seconds = 0.0
        async with aclosing(self._decoder.stream(recording, caller=caller)) as stream:
            async for block in stream:
                blocks.append(block)
                seconds += samples_to_s(len(block))
                if seconds > MAX_RECORDING_S:
                    raise InvalidReference(f"The recording is longer than {MAX_RECORDING_S:g} s.")
        if seconds < MIN_RECORDING_S:
            raise InvalidReference(f"The recording is shorter than {MIN_RECORDING_S:g} s.")
        samples = np.concatenate(blocks)
        peak = max(np.abs(samples).max(), np.float32(1.0))  # float files may exceed full scale
        scaled: Samples = np.clip(samples / peak, -1.0, 1.0)
        return scaled


def _only_voice(found: Diarization) -> VoicePrint:
    """The print of the one person who speaks. Raises `InvalidReference` if there is none, or a second one says more
    than a word."""
    spoken_ms = Counter[int]()
    for turn in found.turns:
        spoken_ms[turn.speaker] += turn.end_ms - turn.start_ms
    if spoken_ms.total() < _LEAST_SPEECH_MS or not found.voice_prints:
        raise InvalidReference("The recording has less than 1 s of speech.")
    speakers, durations_ms = zip(*spoken_ms.most_common(), strict=True)
    prints = [found.voice_prints[speaker] for speaker in speakers]
    is_other = similarities(prints[:1], prints)[0] < _OTHER_VOICE
    if any(ms >= _OTHER_SPEECH_MS for ms, other in zip(durations_ms, is_other, strict=True) if other):
        raise InvalidReference("The recording has more than one voice: send one in which the person speaks alone.")
    return _mean(prints, np.where(is_other, 0, durations_ms))


def _mean(prints: Sequence[VoicePrint], weights: NDArray[np.float64]) -> VoicePrint:
    mean: VoicePrint = unit(np.average(unit(np.stack(prints)), axis=0, weights=weights)[None])[0].astype(np.float32)
    return mean
