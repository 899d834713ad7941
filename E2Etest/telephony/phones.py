"""The frames of the four telephone systems, as they send them: packets of 20 ms, in each protocol's form."""

from __future__ import annotations

import base64
import json
import socket
import struct
import uuid
from contextlib import contextmanager, suppress

import numpy as np
import soxr
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from asr_server.audio.g711 import Companding
from E2Etest.drive import recordings

PACKET_MS = 20


def at_rate(samples: np.ndarray, rate: int) -> np.ndarray:
    """Samples of 16 kHz at another rate, int16."""
    return soxr.resample(samples, 16_000, rate).astype("<i2")


def mu_law(samples: np.ndarray) -> bytes:
    """Return samples of 16 kHz as mu-law at 8 kHz."""
    return recordings.companded(at_rate(samples, 8_000), Companding.MU)


def packets(data: bytes, bytes_per_s: int) -> list[bytes]:
    """The data in packets of 20 ms."""
    size = bytes_per_s * PACKET_MS // 1000
    return [data[at : at + size] for at in range(0, len(data), size)]


def twilio_start(call, tracks=("inbound",), **parameters) -> list[dict]:
    """The two messages before the first media, as https://www.twilio.com/docs/voice/media-streams/websocket-messages
    has them."""
    form = {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1}
    start = {"streamSid": "MZ1", "accountSid": "AC1", "callSid": call, "tracks": list(tracks), "mediaFormat": form}
    start["customParameters"] = parameters
    return [
        {"event": "connected", "protocol": "Call", "version": "1.0.0"},
        {"event": "start", "sequenceNumber": "1", "start": start, "streamSid": "MZ1"},
    ]


def twilio_media(track, chunk, payload) -> dict:
    """A message with audio."""
    media = {"track": track, "chunk": str(chunk), "timestamp": str(chunk * PACKET_MS)}
    media["payload"] = base64.b64encode(payload).decode()
    return {"event": "media", "sequenceNumber": str(chunk + 1), "media": media, "streamSid": "MZ1"}


def twilio_call(bridge, call, **tracks) -> None:
    """A call through Media Streams; each track is samples of 16 kHz, sent in turns as Twilio does."""
    coded = {track: packets(mu_law(samples), 8_000) for track, samples in tracks.items()}
    with connect(bridge.url("twilio")) as stream:
        for message in twilio_start(call, list(tracks), caller="+15550100"):
            stream.send(json.dumps(message))
        for chunk in range(max(map(len, coded.values()))):
            for track, payloads in coded.items():
                if chunk < len(payloads):
                    stream.send(json.dumps(twilio_media(track, chunk + 1, payloads[chunk])))
        stream.send(json.dumps({"event": "dtmf", "streamSid": "MZ1", "dtmf": {"track": "inbound_track", "digit": "5"}}))
        stream.send(json.dumps({"event": "mark", "streamSid": "MZ1", "mark": {"name": "m"}}))
        stop = {"accountSid": "AC1", "callSid": call}
        stream.send(json.dumps({"event": "stop", "streamSid": "MZ1", "stop": stop}))
        wait_closed(stream)


def asterisk_call(bridge, call, samples, *, form="ulaw", plain=True) -> None:
    """A call through chan_websocket, with events in either of its forms."""
    fields = {"connection_id": "asr", "channel": "WebSocket/asr/0x7f01", "channel_id": call}
    fields |= {"format": form, "optimal_frame_size": 160, "ptime": 20}
    digit = {"digit": "5", "channel_id": call}

    def event(name, values):
        if plain:
            return " ".join([name, *(f"{key}:{value}" for key, value in values.items())])
        return json.dumps({"event": name, **values})

    rate = {"ulaw": 8_000, "slin": 8_000, "slin12": 12_000, "slin16": 16_000}[form]
    data = mu_law(samples) if form == "ulaw" else at_rate(samples, rate).tobytes()
    with connect(bridge.url("asterisk"), subprotocols=["media"]) as stream:
        assert stream.subprotocol == "media"
        stream.send(event("MEDIA_START", fields))
        for packet in packets(data, rate * (1 if form == "ulaw" else 2)):
            stream.send(packet)
        stream.send(event("DTMF_END", digit))


def freeswitch_call(bridge, call, samples, other=None, *, rate=8_000) -> None:
    """A call through mod_audio_stream; `other` is what the callee says, in stereo."""
    sides = [at_rate(each, rate) for each in ([samples] if other is None else [samples, other])]
    sides = [np.pad(side, (0, max(map(len, sides)) - len(side))) for side in sides]
    data = np.stack(sides, axis=1).astype("<i2").tobytes()
    with connect(bridge.url(f"freeswitch?call={call}&rate={rate}&channels={len(sides)}")) as stream:
        stream.send(json.dumps({"queue": "sales"}))
        for packet in packets(data, rate * 2 * len(sides)):
            stream.send(packet)


def frame(kind: int, payload: bytes = b"") -> bytes:
    """A frame of AudioSocket."""
    return struct.pack(">BH", kind, len(payload)) + payload


@contextmanager
def audiosocket(bridge, call=None):
    """A connection of AudioSocket, after its first frame if the call has a name."""
    with socket.create_connection(("127.0.0.1", bridge.audiosocket_port), timeout=60) as stream:
        if call is not None:
            stream.sendall(frame(0x01, uuid.UUID(call).bytes))
        yield stream


def audiosocket_call(bridge, call, samples, *, kind=0x10, rate=8_000) -> None:
    """A call through AudioSocket."""
    with audiosocket(bridge, call) as stream:
        for packet in packets(at_rate(samples, rate).tobytes(), 2 * rate):
            stream.sendall(frame(kind, packet))
        stream.sendall(frame(0x03, b"5"))
        stream.sendall(frame(0x00))
        assert stream.recv(16) in {frame(0x00), b""}


def wait_closed(stream) -> tuple[int, str]:
    """Wait until the bridge closes, and return the code and the reason."""
    with suppress(ConnectionClosed):
        while True:
            stream.recv(timeout=60)
    return stream.close_code, stream.close_reason
