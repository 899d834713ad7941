"""Hostile text is spoken."""

import pytest

URL = "/v1/audio/speech"


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
