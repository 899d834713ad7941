"""The process of eSpeak NG, as seen from the engine's thread: start it, have sentences spoken, end it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict

import numpy as np
from numpy.typing import NDArray

from asr_server.core.errors import ModelUnavailable, SpeechFailed
from asr_server.features.speech_output.engines.espeak.package import Library
from asr_server.features.speech_output.engines.espeak.worker import (
    MAX_ANSWER_BYTES,
    MAX_MESSAGE_BYTES,
    Clause,
    SpeakRequest,
)
from asr_server.processes.worker_process import BlockingProcess, ProcessLost

# From a slow disk many seconds; a sentence more than 50 ms if other processes keep the machine busy.
_START_S, _MESSAGE_S = 30.0, 15.0


class EspeakProcess(BlockingProcess):
    """A running process, or one that was lost. For one thread."""

    def __init__(self, library: Library) -> None:
        """Raises `ModelUnavailable`."""
        try:
            super().__init__("asr_server.features.speech_output.engines.espeak.worker", library.path, str(library.data))
            self.receive(_START_S, MAX_MESSAGE_BYTES)
        except OSError as error:
            raise ModelUnavailable("The process of eSpeak NG cannot be started.") from error
        except ProcessLost:
            raise ModelUnavailable(f"eSpeak NG cannot be loaded from {library.path}.") from None

    def speak(self, request: SpeakRequest) -> Iterator[NDArray[np.int16]]:
        """Yield the samples of a sentence as they come, at `worker.RATE`. To be read to its end.

        Raises `SpeechFailed`; if the process was lost with it, `is_running` is False.
        """
        for data in self._answer(request):
            yield np.frombuffer(data, np.int16)

    def clauses(self, text: str, voice: str) -> list[Clause]:
        """Return a sentence as the library would speak it in this voice. Raises as `speak`."""
        answer = bytearray()
        for data in self._answer(SpeakRequest(text, voice, phonemes=True)):
            answer += data
            if len(answer) > MAX_ANSWER_BYTES:
                self.end()
                raise SpeechFailed("eSpeak NG says too much of a sentence.")
        try:
            return [Clause(str(phonemes), str(ending)) for phonemes, ending in json.loads(answer)]
        except (ValueError, TypeError) as error:
            self.end()
            raise SpeechFailed("The process of eSpeak NG does not keep to its protocol.") from error

    def _answer(self, request: SpeakRequest) -> Iterator[bytes]:
        try:
            self.send(asdict(request))
            while "spoken" not in (message := self.receive(_MESSAGE_S, MAX_MESSAGE_BYTES)).content:
                yield message.data
        except ProcessLost as lost:
            raise SpeechFailed(f"The process of eSpeak NG {lost}.") from None
        if not message.content["spoken"]:
            raise SpeechFailed("eSpeak NG failed on a sentence of this text.")
