"""Creates a stored voice from recordings of one person, and refuses recordings that would give a wrong voice."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from asr_server.core.errors import DeadlineExceeded, InvalidInput
from asr_server.features.speakers.diarization.clustering import mean_voice
from asr_server.features.speakers.diarization.turns import VoicePrint
from asr_server.features.speakers.voice_prints import OTHER_VOICE, voice_print
from asr_server.features.speakers.voices import EnrolledVoice, VoiceStore, similarities
from asr_server.processes.caller_work import FairShares

if TYPE_CHECKING:
    from asr_server.audio.decode import Decoder, Source
    from asr_server.features.speakers.diarization.client import SpeakerClient

MAX_RECORDINGS = 5


class Enrolment:
    """Stores voices. Callers take turns with their recordings, within their time limits.

    `speakers`: the client, or the reason why the server does not distinguish speakers.
    """

    def __init__(
        self, speakers: SpeakerClient | str, decoder: Decoder, voices: VoiceStore, *, time_limit_s: float
    ) -> None:
        self._speakers_or_reason = speakers
        self._decoder = decoder
        self._voices = voices
        self._time_limit_s = time_limit_s
        # Recordings of two callers are processed side by side: no caller waits for all recordings of another one.
        self._places = FairShares(1, 2)

    @property
    def is_running(self) -> bool:
        """True while there is a process that tells speakers apart."""
        speakers = self._speakers_or_reason
        return not isinstance(speakers, str) and speakers.pid is not None

    def check(self) -> SpeakerClient:
        """Raise `unsupported_value` if no voice can be stored. Routes call it before they read a body."""
        if isinstance(self._speakers_or_reason, str):
            reason = self._speakers_or_reason
            raise InvalidInput(
                f"This server does not distinguish speakers, so it stores no voices ({reason}).",
                code="unsupported_value",
            )
        return self._speakers_or_reason

    async def enrol(
        self, recordings: Sequence[Source], name: str, consent: str, owner: str = "", caller: str = ""
    ) -> EnrolledVoice:
        """Store the voice of these recordings, in place of the owner's voice of that name if there is one.

        `caller`: the caller to whom the use of the decoders is attributed.
        Raises `invalid_reference`, what `check` and the decoder raise, `SpeakersUnavailable`, `Overloaded` if too many
        voices are stored, and `DeadlineExceeded`.
        """
        speakers = self.check()
        await asyncio.to_thread(self._voices.place, owner, name)  # raises `Overloaded` before anything is computed
        try:
            async with asyncio.timeout(self._time_limit_s):
                prints = await self._voice_prints(speakers, recordings, caller)
        except TimeoutError:
            raise DeadlineExceeded("The voice was not computed within the server's time limit.") from None
        if (similarities(prints, prints) < OTHER_VOICE).any():
            raise InvalidInput(
                "The recordings have different voices: send recordings of one person.",
                code="invalid_reference",
                param="files",
            )
        voice = EnrolledVoice(
            name=name,
            voice_print=mean_voice(np.stack(prints), np.ones(len(prints))),
            model=speakers.voice_model,
            consent=consent,
        )
        return await asyncio.to_thread(self._voices.put, owner, voice)

    async def _voice_prints(
        self, speakers: SpeakerClient, recordings: Sequence[Source], caller: str
    ) -> list[VoicePrint]:
        found = []
        for number, recording in enumerate(recordings, 1):
            try:
                async with self._places.taken(caller):
                    found.append(await voice_print(speakers, self._decoder, recording, caller))
            except InvalidInput as error:
                which = f"Recording {number}: " if len(recordings) > 1 else ""
                raise InvalidInput(f"{which}{error.message}", code=error.code, param="files") from None
        return found
