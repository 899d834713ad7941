"""The process of eSpeak NG, as seen from the engine's thread: start it, have sentences spoken, end it."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from asr_server.core.errors import ModelUnavailable, SpeechFailed
from asr_server.features.speech_output.engines.espeak.package import Library
from asr_server.features.speech_output.engines.espeak.wire import (
    FRAME_HEADER,
    MAX_ANSWER_BYTES,
    MAX_FRAME_BYTES,
    OUTCOME,
    SPOKEN,
    Clause,
    SpeakRequest,
)
from asr_server.processes.environment import child_environment

# From a slow disk many seconds; a sentence more than 50 ms if other processes keep the machine busy.
_START_S, _FRAME_S = 30.0, 15.0


class EspeakProcess:
    """A running process, or one that was lost. For one thread."""

    def __init__(self, library: Library) -> None:
        """Raises `ModelUnavailable`."""
        try:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-m",
                    "asr_server.features.speech_output.engines.espeak.worker",
                    library.path,
                    str(library.data),
                ],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,  # the library's messages may quote a caller's text
                env=child_environment(),
                start_new_session=True,  # a Ctrl-C in the terminal reaches the server alone
            )
        except OSError as error:
            raise ModelUnavailable("The process of eSpeak NG cannot be started.") from error
        try:
            self._read(1, _START_S)
        except SpeechFailed:
            self.end()
            raise ModelUnavailable(f"eSpeak NG cannot be loaded from {library.path}.") from None

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def speak(self, request: SpeakRequest) -> Iterator[NDArray[np.int16]]:
        """Yield the samples of a sentence as they come, at `wire.RATE`. Raises `SpeechFailed`; if the process was lost
        with it, `is_running` is False. To be read to its end, or the process be ended."""
        for frame in self._frames(request):
            yield np.frombuffer(frame, np.int16)

    def clauses(self, text: str, voice: str) -> list[Clause]:
        """Return a sentence as the library would speak it in this voice. Raises as `speak`."""
        answer = bytearray()
        for frame in self._frames(SpeakRequest(text, voice, phonemes=True)):
            answer += frame
            if len(answer) > MAX_ANSWER_BYTES:
                self.end()
                raise SpeechFailed("eSpeak NG says too much of a sentence.")
        try:
            return [Clause(str(phonemes), str(ending)) for phonemes, ending in json.loads(answer)]
        except (ValueError, TypeError) as error:
            self.end()
            raise SpeechFailed("The process of eSpeak NG does not keep to its protocol.") from error

    def _frames(self, request: SpeakRequest) -> Iterator[bytes]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(request.to_bytes())
        except OSError as error:
            self.end()
            raise SpeechFailed("The process of eSpeak NG was lost; try again.") from error
        while size := FRAME_HEADER.unpack(self._read(FRAME_HEADER.size, _FRAME_S))[0]:
            if size > MAX_FRAME_BYTES:
                self.end()
                raise SpeechFailed("The process of eSpeak NG does not keep to its protocol.")
            yield self._read(size, _FRAME_S)
        if OUTCOME.unpack(self._read(OUTCOME.size, _FRAME_S))[0] != SPOKEN:
            raise SpeechFailed("eSpeak NG failed on a sentence of this text.")

    def end(self) -> None:
        """Kill it and the child that speaks."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _read(self, size: int, limit_s: float) -> bytes:
        """Read that many bytes. Ends the process and raises `SpeechFailed` if they do not come in time."""
        assert self._process.stdout is not None
        fd, give_up_s, parts = self._process.stdout.fileno(), time.monotonic() + limit_s, []
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        while size:
            ready = poll.poll(max(0.0, give_up_s - time.monotonic()) * 1000)
            part = os.read(fd, size) if ready else b""
            if not part:
                self.end()
                raise SpeechFailed("The process of eSpeak NG was lost; try again.")
            parts.append(part)
            size -= len(part)
        return b"".join(parts)
