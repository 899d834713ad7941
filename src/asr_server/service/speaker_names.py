"""The names of the speakers of a recording: of the caller's clips, of stored voices, and letters for all others."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from typing import TYPE_CHECKING

from asr_server.core.errors import InvalidInput
from asr_server.service.voice_prints import voice_print
from asr_server.service.voices import NamedVoice, VoiceStore, named
from asr_server.speakers.turns import label

if TYPE_CHECKING:
    from asr_server.audio.decode import Decoder
    from asr_server.service.requests import KnownSpeaker
    from asr_server.speakers.client import SpeakerClient
    from asr_server.speakers.turns import VoicePrint


class SpeakerNames:
    """Finds names. One for the server."""

    def __init__(self, client: SpeakerClient, decoder: Decoder, stored: VoiceStore) -> None:
        self._client = client
        self._decoder = decoder
        self._stored = stored

    async def known(self, speakers: Sequence[KnownSpeaker], caller: str) -> list[NamedVoice]:
        """The voices in the caller's clips. Raises what is wrong with a clip, and `SpeakersUnavailable`."""
        voices = []
        for speaker in speakers:
            with tempfile.TemporaryFile() as clip:
                clip.write(speaker.clip)
                clip.flush()
                try:
                    found = await voice_print(self._client, self._decoder, clip, caller)
                except InvalidInput as error:
                    error.param = "known_speaker_references"
                    raise
            voices.append(NamedVoice(name=speaker.name, voice_print=found))
        return voices

    async def of(self, prints: Sequence[VoicePrint], known: Sequence[NamedVoice], owner: str) -> list[str]:
        """A name for each speaker, none twice. The caller's names come before those of the owner's stored voices."""
        stored = await self._stored.comparable(owner, self._client.voice_model)
        found = named(prints, known)
        rest = [place for place, name in enumerate(found) if name is None]
        others = [voice for voice in stored if voice.name not in found]
        for place, name in zip(rest, named([prints[place] for place in rest], others), strict=True):
            found[place] = name
        return lettered(found)


def lettered(names: Sequence[str | None]) -> list[str]:
    """Speakers without a name get the letters that are no name, in order."""
    letters = (letter for number in range(2 * len(names)) if (letter := label(number)) not in names)
    return [name if name is not None else next(letters) for name in names]
