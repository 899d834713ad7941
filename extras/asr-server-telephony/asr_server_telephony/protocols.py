"""Four protocols of telephone systems as events of a call. Pure: no I/O, no clock.

Sources of the formats:

- Twilio Media Streams: https://www.twilio.com/docs/voice/media-streams/websocket-messages
- Asterisk's AudioSocket: https://docs.asterisk.org/Configuration/Channel-Drivers/AudioSocket/
- Asterisk's chan_websocket: https://docs.asterisk.org/Configuration/Channel-Drivers/WebSocket/, and in its source
  `channels/chan_websocket.c` the functions `_create_event_*`
- FreeSWITCH's mod_audio_stream: https://github.com/amigniter/mod_audio_stream, README.md
"""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from asr_server.audio import g711

# The telephone system's name for the call goes into every message.
_MAX_NAME_CHARS = 200
_TELEPHONE_HZ = 8_000


class BadMessage(Exception):
    """A peer broke its protocol, which ends its call. `code` is stable."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class CallStarted:
    """The call has begun. It comes before every other event."""

    call: str  # the name that the telephone system gives it
    parties: tuple[str, ...]  # whose audio comes
    details: Mapping[str, Any] = field(default_factory=dict)  # what the telephone system says about the call
    secret: str | None = None  # the secret that it sent; None for a protocol that does not send it here


@dataclass(frozen=True, slots=True)
class CallAudio:
    """The next audio of a party."""

    party: str
    pcm: bytes  # 16-bit little-endian, mono, whole samples
    rate_hz: int


@dataclass(frozen=True, slots=True)
class Digit:
    """A key of the telephone was pressed."""

    digit: str


@dataclass(frozen=True, slots=True)
class Metadata:
    """A text that the telephone system's configuration has sent."""

    content: Any  # parsed if it is JSON


@dataclass(frozen=True, slots=True)
class Stopped:
    """The call has ended, normally or with an error of the telephone system."""

    reason: str = "hangup"


Event = CallStarted | CallAudio | Digit | Metadata | Stopped


class TwilioReader:
    """Media Streams: only JSON, with mu-law at 8 kHz in base64. With both tracks, each is a party."""

    begin: Iterable[Event] = ()  # the call is unknown before the message `start`

    def __init__(self, _query: Mapping[str, str]) -> None:
        self._tracks: tuple[str, ...] = ()

    def read(self, message: str | bytes) -> Iterable[Event]:
        try:
            return self._read(_object(message))
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
            raise BadMessage("invalid_message", "A field of this message is missing or is not Twilio's.") from error

    def _read(self, body: dict[str, Any]) -> Iterable[Event]:
        match body["event"]:
            case "start" if not self._tracks:
                return [self._start(body["start"])]
            case "media" if body["media"]["track"] in self._tracks:
                coded = base64.b64decode(body["media"]["payload"], validate=True)
                pcm = g711.decode(coded, g711.Companding.MU)
                return [CallAudio(body["media"]["track"], pcm, _TELEPHONE_HZ)]
            case "dtmf" if self._tracks:
                return [Digit(_digit(body["dtmf"]["digit"]))]
            case "stop":
                return [Stopped()]
            case "start" | "media" | "dtmf" as event:
                raise BadMessage("invalid_message", f"The message {event} is not expected here.")
        return ()  # connected, mark, and what later versions add

    def _start(self, start: dict[str, Any]) -> CallStarted:
        form, custom = start["mediaFormat"], dict(start.get("customParameters") or {})
        if (form["encoding"], int(form["sampleRate"]), int(form["channels"])) != ("audio/x-mulaw", _TELEPHONE_HZ, 1):
            raise BadMessage("unsupported_format", "Audio must be audio/x-mulaw at 8000 Hz with one channel.")
        tracks = tuple(start["tracks"])
        if not tracks or not set(tracks) <= {"inbound", "outbound"} or len(set(tracks)) != len(tracks):
            raise ValueError("tracks")
        self._tracks = tracks
        secret = str(custom.pop("token", ""))
        details = {"stream": _name(start["streamSid"]), "parameters": custom}
        return CallStarted(_name(start["callSid"]), tracks, details, secret)


_SLIN_HZ = {"slin": 8_000, "slin12": 12_000, "slin16": 16_000, "slin24": 24_000, "slin32": 32_000}
_SLIN_HZ |= {"slin44": 44_100, "slin48": 48_000, "slin96": 96_000, "slin192": 192_000}
_LAWS = {"ulaw": g711.Companding.MU, "alaw": g711.Companding.A}
# The parties of a channel. Protocols that carry one channel have only the caller.
CALLER, CALLEE = "caller", "callee"


class AsteriskReader:
    """chan_websocket: events in text frames, plain or as JSON, and media of the channel's format in binary frames."""

    begin: Iterable[Event] = ()  # the call is unknown before MEDIA_START

    def __init__(self, query: Mapping[str, str]) -> None:
        self._call = query.get("call", "")
        self._format = ""

    def read(self, message: str | bytes) -> Iterable[Event]:
        """Return the events of a message."""
        if isinstance(message, bytes):
            return [self._media(message)]
        fields = _object(message) if message.startswith("{") else _plain(message)
        match fields.get("event"):
            case "MEDIA_START" if not self._format:
                return [self._start(fields)]
            case "DTMF_END" if self._format:
                return [Digit(_digit(fields.get("digit")))]
            case "MEDIA_START" | "DTMF_END" as event:
                raise BadMessage("invalid_message", f"The event {event} is not expected here.")
        return ()  # flow control of media sent to Asterisk; this bridge sends none

    def _start(self, fields: dict[str, Any]) -> CallStarted:
        self._format = str(fields.get("format", ""))
        if self._format not in _SLIN_HZ and self._format not in _LAWS:
            named = ", ".join([*_LAWS, *_SLIN_HZ])
            raise BadMessage("unsupported_format", f"The channel's format must be one of {named}.")
        details = {key: fields[key] for key in fields if key in {"connection_id", "channel", "channel_variables"}}
        # All calls of a connection that Asterisk opens have the same connection_id.
        name = self._call or fields.get("channel_id") or fields.get("channel")
        return CallStarted(_name(name), (CALLER,), details)

    def _media(self, media: bytes) -> CallAudio:
        if not self._format:
            raise BadMessage("invalid_message", "Media came before MEDIA_START.")
        if self._format in _LAWS:
            return CallAudio(CALLER, g711.decode(media, _LAWS[self._format]), _TELEPHONE_HZ)
        return CallAudio(CALLER, _whole_samples(media, 1), _SLIN_HZ[self._format])


class FreeswitchReader:
    """mod_audio_stream: 16-bit samples in binary frames; `stereo` has the caller and the callee in turn.

    The protocol says neither rate nor channels, so the address does: `?rate=16000&channels=2`.
    """

    def __init__(self, query: Mapping[str, str]) -> None:
        rate, channels = query.get("rate", "8000"), query.get("channels", "1")
        if rate not in {"8000", "16000"} or channels not in {"1", "2"}:
            raise BadMessage("invalid_query", "The address has rate=8000 or 16000, and channels=1 or 2.")
        self._rate_hz = int(rate)
        self._parties = (CALLER, CALLEE)[: int(channels)]
        # The start of the call, which the address describes completely.
        self.begin: Iterable[Event] = [CallStarted(_name(query.get("call") or str(uuid.uuid4())), self._parties)]

    def read(self, message: str | bytes) -> Iterable[Event]:
        """Return the events of a message."""
        if isinstance(message, str):
            try:
                return [Metadata(json.loads(message))]
            except (ValueError, RecursionError):
                return [Metadata(message)]
        pcm, channels = memoryview(_whole_samples(message, len(self._parties))).cast("h"), len(self._parties)
        return [
            CallAudio(party, pcm[place::channels].tobytes(), self._rate_hz) for place, party in enumerate(self._parties)
        ]


WEBSOCKET_READERS: dict[str, type[TwilioReader] | type[AsteriskReader] | type[FreeswitchReader]] = {
    "twilio": TwilioReader,
    "asterisk": AsteriskReader,
    "freeswitch": FreeswitchReader,
}

# Kinds of AudioSocket frames. Audio has a kind for each rate, in the order of the rates; older versions have only 0x10.
HANGUP, _UUID, _DTMF, _ERROR = 0x00, 0x01, 0x03, 0xFF
_AUDIO_HZ = dict(enumerate(_SLIN_HZ.values(), 0x10))


class AudioSocketReader:
    """AudioSocket: frames of a kind and a payload. The first has the dialplan's UUID, which names the call."""

    def __init__(self) -> None:
        self._named = False

    def read(self, kind: int, payload: bytes) -> Event:
        """Return the event of a frame. Raises `BadMessage`."""
        if kind == HANGUP:
            return Stopped()
        if kind == _ERROR:
            return Stopped("asterisk_error")
        if (kind == _UUID) == self._named:
            raise BadMessage("invalid_message", "The first frame, and no other, must have the UUID of the call.")
        if kind == _UUID and len(payload) == 16:
            self._named = True
            return CallStarted(str(uuid.UUID(bytes=payload)), (CALLER,))
        if kind == _DTMF and len(payload) == 1:
            return Digit(_digit(payload.decode("latin-1")))
        if kind in _AUDIO_HZ:
            return CallAudio(CALLER, _whole_samples(payload, 1), _AUDIO_HZ[kind])
        raise BadMessage("invalid_message", f"A frame of kind 0x{kind:02x} with {len(payload)} bytes is not known.")


def _object(message: str | bytes) -> dict[str, Any]:
    try:
        body = json.loads(message) if isinstance(message, str) else None
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise BadMessage("invalid_message", "A message must be one JSON object in a text frame.")
    return body


def _plain(message: str) -> dict[str, Any]:
    """Return the fields of an event in chan_websocket's older form, `NAME key:value key:value`."""
    event, *pairs = message.split() or [""]
    return {"event": event, **{key: value for key, _, value in (pair.partition(":") for pair in pairs)}}


def _name(value: Any) -> str:
    if not isinstance(value, str) or not value.isprintable() or not 0 < len(value) <= _MAX_NAME_CHARS:
        raise BadMessage("invalid_message", f"A name of the call must have 1 to {_MAX_NAME_CHARS} characters.")
    return value


def _digit(value: Any) -> str:
    if not isinstance(value, str) or len(value) != 1 or value not in "0123456789*#ABCDabcd":
        raise BadMessage("invalid_message", "A digit must be one of 0 to 9, *, # and A to D.")
    return value


def _whole_samples(pcm: bytes, channels: int) -> bytes:
    if len(pcm) % (2 * channels):
        raise BadMessage("invalid_audio", "Audio must have whole 16-bit samples of every channel.")
    return pcm
