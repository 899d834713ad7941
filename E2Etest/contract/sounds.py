"""Makes the sounds, files and texts that the recorded conversations send."""

from __future__ import annotations

import base64

import numpy as np
import soxr

from asr_server.audio.g711 import Companding
from asr_server.features.speakers.diarization.conftest import tone
from E2Etest.drive import recordings

_RATE = 16_000
_LAWS = {"pcmu": Companding.MU, "mulaw": Companding.MU, "pcma": Companding.A}


def sound(parts, rate=_RATE):
    """Return int16 (n,): parts are the bundled recording, `[from_s, to_s]` of it, and seconds of silence."""
    spoken = recordings.samples()
    made = [np.zeros(0, np.int16)]
    for part in parts:
        if isinstance(part, int | float):
            made.append(np.zeros(int(_RATE * part), np.int16))
        else:
            begin_s, end_s = part if isinstance(part, list) else (0, len(spoken))
            made.append(spoken[int(_RATE * begin_s) : int(_RATE * end_s)])
    pcm = np.concatenate(made)
    return pcm if rate == _RATE else soxr.resample(pcm, _RATE, rate).astype(np.int16)


def encoded(parts, rate, encoding):
    """Return a sound in an encoding of live audio."""
    pcm = sound(parts, rate)
    if encoding == "pcm_f32le":
        return (pcm / 32_768).astype("<f4").tobytes()
    return recordings.companded(pcm, _LAWS[encoding]) if encoding else pcm.astype("<i2").tobytes()


def content(value):
    """Return the bytes of a text, of a WAV file of a sound, or of the sound as the fields say it."""
    match value:
        case str():
            return value.encode()
        case list():
            return recordings.wav(sound(value))
        case {"zeros": size}:
            return bytes(size)
        case {"hex": digits}:
            return bytes.fromhex(digits)
        case {"channels": sounds}:
            tracks = [sound(parts) for parts in sounds]
            longest = max(map(len, tracks))
            tracks = [np.pad(track, (0, longest - len(track))) for track in tracks]
            return recordings.wav(np.stack(tracks).T.reshape(-1), channels=len(tracks))
        case {"video": "silent"}:
            return recordings.silent_video()
        case {"tone": hertz, "s": seconds}:
            return recordings.wav(tone(hertz, seconds))
        case {"tones": tones}:
            return recordings.wav(np.concatenate([tone(hertz, seconds) for hertz, seconds in tones]))
        case {"sound": parts, "codec": [container, codec, rate]}:
            return recordings.encoded(container, codec, sound(parts), rate=rate)
        case {"sound": parts, "header": False}:
            return encoded(parts, value.get("rate", _RATE), None)
        case {"sound": parts}:
            rate = value.get("rate", _RATE)
            return recordings.wav(sound(parts, rate), rate=rate)
    raise ValueError(value)


def url(value):
    return "data:audio/wav;base64," + base64.b64encode(content(value["sound_url"])).decode()
