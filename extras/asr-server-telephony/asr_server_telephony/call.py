"""A call: events of its telephone system in, messages out, one live session for each party."""

from __future__ import annotations

import ipaddress
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from loguru import logger

from asr_server_telephony.message_queue import MessageQueue
from asr_server_telephony.party_session import PartySession, SessionTarget
from asr_server_telephony.protocols import BadMessage, CallAudio, CallStarted, Digit, Event, Metadata, Stopped

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_BEGIN_WITHIN_S = 10.0  # from the connection to the start of the call
_IDLE_S = 120.0  # the longest time without a message; then the call is ended
_LAST_WORDS_WITHIN_S = 20.0  # from the end of the call
# Ends that are nobody's fault.
_IN_ORDER = {"hangup", "shutdown"}


@dataclass(frozen=True, slots=True)
class BridgeOptions:
    """The options of the command."""

    target: SessionTarget
    queues: Sequence[MessageQueue]
    answers: bool = False  # also send messages back, if the peer accepts text
    secret: str = ""  # which the peers of the WebSocket must send
    allowed: Sequence[Network] = ()  # from which AudioSocket may connect; all if empty
    max_calls: int = 50


class Call:
    """One telephone call. `queues` get its messages. `admit` raises `BadMessage` if the secret at the start of the call
    is wrong, and if there are too many calls."""

    def __init__(
        self, protocol: str, target: SessionTarget, queues: Sequence[MessageQueue], admit: Callable[[str | None], None]
    ) -> None:
        self._protocol, self._target = protocol, target
        self._queues, self._admit = queues, admit
        self._name = ""
        self._parties: dict[str, PartySession] = {}
        self._telling = threading.Lock()
        self._told = 0
        self._begin_s = time.monotonic()

    def follow(self, events: Callable[[float], Iterable[Event]]) -> tuple[str, str]:
        """Follow the call until it ends. Returns the code of the reason, and a sentence, "" for a normal end.

        `events` waits for a message for the given number of seconds and returns the message's events. It raises
        `BadMessage`, `TimeoutError`, and `OSError` if the connection broke.
        """
        try:
            while True:
                for event in events(self._wait_s()):
                    if isinstance(event, Stopped):
                        return event.reason, ""
                    self._on(event)
        except BadMessage as error:
            return error.code, str(error)
        except TimeoutError:
            code = "idle" if self._name else "no_begin"
            return code, "No message came in time."
        except OSError:
            return "connection_lost", "The connection broke."

    def finish(self, code: str) -> None:
        """Wait for the last words, and report the end of the call. The connection has been closed."""
        for session in self._parties.values():
            session.finish()
        give_up_s = time.monotonic() + _LAST_WORDS_WITHIN_S
        for session in self._parties.values():
            session.wait(max(0.0, give_up_s - time.monotonic()))
        seconds = round(time.monotonic() - self._begin_s, 1)
        if self._name:
            self._tell({"type": "call_ended", "reason": code, "seconds": seconds})
        level = "INFO" if code in _IN_ORDER else "WARNING"
        logger.log(level, "call ended", code=code, protocol=self._protocol, call=self._name, seconds=seconds)

    def _wait_s(self) -> float:
        if self._name:
            return _IDLE_S
        wait_s = self._begin_s + _BEGIN_WITHIN_S - time.monotonic()
        if wait_s <= 0:  # other messages came, but not the start of the call
            raise TimeoutError
        return wait_s

    def _on(self, event: CallStarted | CallAudio | Digit | Metadata) -> None:
        match event:
            case CallStarted():
                self._admit(event.secret)
                self._name = event.call
                logger.info("call started", protocol=self._protocol, call=self._name, parties=len(event.parties))
                more = {"parties": list(event.parties), **event.details}
                self._tell({"type": "call_started", "protocol": self._protocol, **more})
            case CallAudio():
                self._session(event).push(event.pcm)
            case Digit():
                self._tell({"type": "dtmf", "digit": event.digit})
            case Metadata():
                self._tell({"type": "metadata", "content": event.content})

    def _session(self, audio: CallAudio) -> PartySession:
        session = self._parties.get(audio.party)
        if session is None:
            session = PartySession(self._target, audio.party, audio.rate_hz, self._tell)
            self._parties[audio.party] = session
        if session.rate_hz != audio.rate_hz:
            raise BadMessage("invalid_audio", "The rate of the audio changed during the call.")
        return session

    def _tell(self, message: dict[str, Any]) -> None:
        # The numbers are in the order of the queue, so that a receiver sees what is missing.
        with self._telling:
            self._told += 1
            numbered = {"type": message["type"], "call": self._name, "number": self._told, **message}
            for queue in self._queues:
                queue.put(numbered)
