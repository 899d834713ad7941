"""The process of eSpeak NG, as seen from the engine's thread: start it, wait for it to speak sentences, end it."""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
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
from asr_server.processes import messages
from asr_server.processes.launcher import child_environment, python_command
from asr_server.processes.messages import Message

# Loading from a slow disk takes many seconds. A sentence takes over 50 ms if other processes keep the machine busy.
_START_S, _MESSAGE_S = 30.0, 15.0


class EspeakProcess:
    """A running process, or one that was lost. For one thread."""

    def __init__(self, library: Library) -> None:
        """Raises `ModelUnavailable`."""
        module = "asr_server.features.speech_output.engines.espeak.worker"
        try:
            self._process = subprocess.Popen(
                python_command(module, library.path, str(library.data)),
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,  # a library's messages may quote a caller's text
                env=child_environment(),
                start_new_session=True,  # a Ctrl-C in the terminal reaches only the server
            )
            self._receive(_START_S)
        except OSError as error:
            raise ModelUnavailable("The process of eSpeak NG cannot be started.") from error
        except SpeechFailed:
            raise ModelUnavailable(f"eSpeak NG cannot be loaded from {library.path}.") from None

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def speak(self, request: SpeakRequest) -> Iterator[NDArray[np.int16]]:
        """Yield the samples of a sentence as they come, at `worker.RATE`. The caller must read to the end.

        Raises `SpeechFailed`. If that was because the process was lost, `is_running` is False.
        """
        for data in self._answer(request):
            yield np.frombuffer(data, np.int16)

    def clauses(self, text: str, voice: str) -> list[Clause]:
        """Return the clauses of a sentence as the library would speak it in this voice. Raises as `speak`."""
        answer = bytearray()
        for data in self._answer(SpeakRequest(text, voice, phonemes=True)):
            answer += data
            if len(answer) > MAX_ANSWER_BYTES:
                self.end()
                raise SpeechFailed("eSpeak NG says too much of a sentence.")
        try:
            return [Clause(str(phonemes), str(ending)) for phonemes, ending in json.loads(answer)]
        except (ValueError, TypeError):
            raise self._lost("does not keep to its protocol") from None

    def end(self) -> None:
        """Kill it. Its children die with it."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _answer(self, request: SpeakRequest) -> Iterator[bytes]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(messages.packed(asdict(request)))
        except OSError:
            raise self._lost("was lost; try again") from None
        while "spoken" not in (message := self._receive(_MESSAGE_S)).content:
            yield message.data
        if not message.content["spoken"]:
            raise SpeechFailed("eSpeak NG failed on a sentence of this text.")

    def _receive(self, limit_s: float) -> Message:
        """Return the next message. Raises `SpeechFailed` if one of its parts does not come in time."""
        try:
            message = messages.read(lambda size: self._exactly(size, limit_s), MAX_MESSAGE_BYTES)
        except ValueError:
            raise self._lost("does not keep to its protocol") from None
        assert message is not None, "`_exactly` raises at the end"
        return message

    def _exactly(self, size: int, limit_s: float) -> bytes:
        assert self._process.stdout is not None
        fd, give_up_s, parts = self._process.stdout.fileno(), time.monotonic() + limit_s, []
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        while size:
            ready = poll.poll(max(0.0, give_up_s - time.monotonic()) * 1000)
            part = os.read(fd, size) if ready else b""
            if not part:
                raise self._lost("was lost; try again")
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def _lost(self, how: str) -> SpeechFailed:
        self.end()
        return SpeechFailed(f"The process of eSpeak NG {how}.")
