"""The names of the speakers of a live session: those of stored voices, and letters for all others. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from asr_server.core.transcript import MAX_SPEAKERS
from asr_server.features.speakers.diarization.turns import VoicePrint, label
from asr_server.features.speakers.voices import NamedVoice, named


class LiveNames:
    """The names of one session. `first`: the index of the first speaker's letter."""

    def __init__(self, first: int = 0) -> None:
        self._first = first
        # The letters of this session and of those before it that the client knows as one. A voice with such a name is
        # not recognised: somebody else may get that letter, or have it.
        self._letters = {label(number) for number in range(first + MAX_SPEAKERS)}
        self._names: dict[int, str] = {}
        self._settled: dict[int, str] = {}  # the horizon has passed these: they never change

    def of(self, speaker: int) -> str:
        """Return the name or letter of a speaker."""
        return self._settled.get(speaker) or self._names.get(speaker) or label(self._first + speaker)

    def settle(self, speaker: int) -> None:
        """Have a speaker keep the present name or letter from now on."""
        self._settled.setdefault(speaker, self.of(speaker))

    def recognise(self, voice_prints: Mapping[int, VoicePrint], voices: Sequence[NamedVoice]) -> None:
        """Name all speakers anew who are not settled. No name is given twice.

        A voice is kept from all others if it is most similar to a speaker who keeps a letter.
        """
        taken = self._letters | set(self._settled.values())
        unnamed = [speaker for speaker in voice_prints if self._settled.get(speaker, "") in {"", *self._letters}]
        found = named(
            [voice_prints[speaker] for speaker in unnamed], [voice for voice in voices if voice.name not in taken]
        )
        self._names = {speaker: name for speaker, name in zip(unnamed, found, strict=True) if name is not None}
