"""The names of a recording's speakers: from the caller's clips, from stored voices, and letters for all others."""

from __future__ import annotations

import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING

from asr_server.core.errors import InvalidInput
from asr_server.features.speakers.diarization.turns import SpeakerCount, label
from asr_server.features.speakers.voice_prints import voice_print
from asr_server.features.speakers.voices import NamedVoice, named

if TYPE_CHECKING:
    from asr_server.audio.decode import Decoder, Samples
    from asr_server.features.speakers.diarization.client import SpeakerClient
    from asr_server.features.speakers.diarization.turns import VoicePrint


async def known_voices(
    client: SpeakerClient, decoder: Decoder, clips: Mapping[str, bytes], caller: str
) -> list[NamedVoice]:
    """Return the voices in the named clips. Raises `InvalidInput` for a wrong clip, and `SpeakersUnavailable`."""
    voices = []
    for name, clip in clips.items():
        with tempfile.TemporaryFile() as file:
            file.write(clip)
            file.flush()
            try:
                found = await voice_print(client, decoder, file, caller)
            except InvalidInput as error:
                error.param = "known_speaker_references"
                raise
        voices.append(NamedVoice(name=name, voice_print=found))
    return voices


class RecordingNames:
    """Names the speakers of one recording, each name once. The caller's names come before stored voices.

    `stored` reads the stored voices to compare with. Both methods raise `SpeakersUnavailable`.
    """

    def __init__(
        self, client: SpeakerClient, known: Sequence[NamedVoice], stored: Callable[[], Awaitable[Sequence[NamedVoice]]]
    ) -> None:
        self._client = client
        self._known = known
        self._stored = stored

    async def of(self, prints: Sequence[VoicePrint]) -> list[str]:
        return lettered(_recognised(prints, self._known, await self._stored()))

    async def of_channels(self, speech: Mapping[str, Samples]) -> dict[str, str]:
        """Return a name for each channel. `speech`: by the channels' letters, which unrecognised people keep."""
        stored = await self._stored()
        prints: dict[str, VoicePrint] = {}
        for letter, samples in speech.items() if self._known or stored else ():
            found = await self._client.diarize(samples, SpeakerCount(1, 1))
            if found.voice_prints:
                prints[letter] = found.voice_prints[0]
        recognised = _recognised(list(prints.values()), self._known, stored)
        names = {letter: name for letter, name in zip(prints, recognised, strict=True) if name is not None}
        letters = (letter for number in count() if (letter := label(number)) not in {*speech, *names.values()})
        return {
            letter: names.get(letter) or (next(letters) if letter in names.values() else letter) for letter in speech
        }


def _recognised(
    prints: Sequence[VoicePrint], known: Sequence[NamedVoice], stored: Sequence[NamedVoice]
) -> list[str | None]:
    found = named(prints, known)
    rest = [place for place, name in enumerate(found) if name is None]
    others = [voice for voice in stored if voice.name not in found]
    for place, name in zip(rest, named([prints[place] for place in rest], others), strict=True):
        found[place] = name
    return found


def lettered(names: Sequence[str | None]) -> list[str]:
    """Return the names. Speakers without a name get letters in order, except letters that are a name."""
    letters = (letter for number in range(2 * len(names)) if (letter := label(number)) not in names)
    return [name if name is not None else next(letters) for name in names]
