"""Bad input to the routes that speak: each with its code, none a 5xx. Hostile text is spoken."""

import json

import pytest

URL = "/v1/audio/speech"
URLS = [URL, f"{URL}/stream", f"{URL}/stream/pcm"]
TEXT = "Hello there."
HUGE = json.dumps({"input": TEXT, "more": ["x" * 1000] * 1000})


def _code(answer):
    assert answer.status_code < 500, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert len(error["message"]) < 1_000
    return answer.status_code, error["code"], error["param"]


def _fields(**fields):
    return json.dumps({"input": TEXT, **fields})


INVALID = {
    # The text.
    "nothing": ("{}", (400, "invalid_value", "input")),
    "empty": (_fields(input=""), (400, "missing_required_parameter", "input")),
    "blank": (_fields(input=" \n\t\u3000"), (400, "missing_required_parameter", "input")),
    "number": (_fields(input=7), (400, "invalid_value", "input")),
    "list": (_fields(input=[TEXT]), (400, "invalid_value", "input")),
    "null": (_fields(input=None), (400, "invalid_value", "input")),
    "too long": (_fields(input="a" * 20_001), (400, "string_above_max_length", "input")),
    "1 MB": (_fields(input="word " * 200_000), (413, "file_too_large", None)),
    "emoji": (_fields(input="\U0001f600\U0001f680\u2764\ufe0f"), (400, "invalid_value", "input")),
    "points": (_fields(input="... !? --"), (400, "invalid_value", "input")),
    "null byte": (_fields(input="Hello\0there."), (400, "invalid_value", "input")),
    "control characters": (_fields(input="Hello\x1b[2J\x07there."), (400, "invalid_value", "input")),
    "half a surrogate pair": ('{"input": "Hello \\ud83d there."}', (400, "malformed_body", None)),
    # The body.
    "form": ("--b\r\nContent-Disposition: form-data; name=input\r\n\r\nHello", (400, "malformed_body", None)),
    "no JSON": ("input=Hello", (400, "malformed_body", None)),
    "half a JSON": ('{"input": "Hello', (400, "malformed_body", None)),
    "no object": ('["Hello"]', (400, "malformed_body", None)),
    "deep": ("[" * 100_000, (400, "malformed_body", None)),
    "not UTF-8": (b'{"input": "\xff\xfe"}', (400, "malformed_body", None)),
    "huge": (HUGE, (413, "file_too_large", None)),
    # The other fields.
    "unknown voice": (_fields(voice="nobody"), (400, "invalid_value", "voice")),
    "path as a voice": (_fields(voice="../../etc/passwd"), (400, "invalid_value", "voice")),
    "voices": (_fields(voice=["alloy"]), (400, "invalid_value", "voice")),
    "unknown voice by id": (_fields(voice={"id": "nobody"}), (400, "invalid_value", "voice")),
    "format of jobs": (_fields(response_format="m4b"), (400, "invalid_value", "response_format")),
    "unknown format": (_fields(response_format="docx"), (400, "invalid_value", "response_format")),
    "unknown model": (_fields(model="whisper-1"), (404, "model_not_found", "model")),
    "no language": (_fields(language="tlh!"), (400, "invalid_language_format", "language")),
    "unknown language": (_fields(language="zu"), (400, "unsupported_language", "language")),
    "unknown script": (_fields(input="\u0e81\u0e9a" * 5), (400, "unsupported_language", "language")),
    "speed 0": (_fields(speed=0), (400, "invalid_value", "speed")),
    "negative speed": (_fields(speed=-1), (400, "invalid_value", "speed")),
    "speed 1e9": (_fields(speed=1e9), (400, "invalid_value", "speed")),
    "speed NaN": ('{"input": "Hello.", "speed": NaN}', (400, "invalid_value", "speed")),
    "speed fast": (_fields(speed="fast"), (400, "invalid_value", "speed")),
    "negative seed": (_fields(seed=-1), (400, "invalid_value", "seed")),
    "huge seed": (_fields(seed=2**64), (400, "invalid_value", "seed")),
    "pause 1e9": (_fields(pause_ms=1e9), (400, "invalid_value", "pause_ms")),
    "half a pause": (_fields(pause_ms=0.5), (400, "invalid_value", "pause_ms")),
    "long instructions": (_fields(instructions="x" * 5_000), (400, "invalid_value", "instructions")),
    "stream format": (_fields(stream_format="maybe"), (400, "invalid_value", "stream_format")),
}


@pytest.mark.parametrize("name", INVALID)
def test_what_is_wrong_is_named(server, name):
    """In every form of the answer, before anything is spoken."""
    body, (status, code, param) = INVALID[name]
    for url in URLS:
        found = _code(server.client.post(url, content=body, headers={"content-type": "application/json"}))
        assert found == (status, code, param)
    assert server.health()["speech_state"] == "unloaded"


# No sentence of it may take longer than others do, ends the process, or reads a file.
HOSTILE = {
    "SSML": '<speak><audio src="/etc/passwd"/><break time="9999s"/>Hello.</speak>',
    "phonemes": "[[h@l'oU]] [[" + "_:" * 150 + "]] Hello.",
    "commands": "\\pau=60000\\ \\vol=0\\ Hello.",
    "combining marks": "e" + "\u0301" * 400 + " Hello.",
    "zero width": "H\u200be\u200dl\u2060l\ufeffo." + "\u200b" * 300,
    "right to left": "\u202eHello there.\u202c \u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627",
    "one letter": "a" * 2_000,
    "one digit": "9" * 2_000,
    "no blank": "Donaudampfschifffahrtsgesellschaft" * 50,
    "signs": "a" + "!?;:,.-" * 100 + " & % $ # @ \u20ac \u221e \u2211 \u2122 Hello.",
    "line separators": "Hello\u2028there\u2029and\r\nhere.",
    "private use": "Hello \ue000\uf8ff\U000f0000 there.",
    "ligatures": "\ufdfa \ufb03 \u1e9e\ufe0f \U0001d573ello.",
    "cuneiform": "\U00012000" * 50,
    "scripts": " ".join(
        chr(first)
        for first in (
            *(0x41, 0x3B1, 0x430, 0x561, 0x5D0, 0x627, 0x710, 0x780, 0x7CA, 0x905, 0x985, 0xA05, 0xA85, 0xB05, 0xB85),
            *(0xC05, 0xC85, 0xD05, 0xD85, 0xE01, 0xE81, 0xF40, 0x1000, 0x10D0, 0x1100, 0x1200, 0x13A0, 0x1401, 0x1681),
            *(0x16A0, 0x1700, 0x1780, 0x1820, 0x1900, 0x1950, 0x1A00, 0x1B05, 0x1B83, 0x1C00, 0x1C5A, 0x2C00, 0x2D30),
            *(0x3042, 0x30A2, 0x3105, 0x4E00, 0xA000, 0xA4D0, 0xA500, 0xAC00, 0x10330, 0x12000, 0x13000),
        )
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_is_spoken(live_server, name):
    """Soon, and by a process that lives on."""
    body = {"input": HOSTILE[name], "response_format": "pcm", "language": "en"}
    answer = live_server.client.post(URL, json=body, timeout=30)
    assert answer.status_code == 200, answer.text
    assert answer.content
    pid = live_server.speech_pid
    assert live_server.client.post(URL, json={"input": f"After {name}."}).status_code == 200
    assert live_server.speech_pid == pid
