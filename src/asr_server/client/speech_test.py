"""The blocking speech client; the command and the bridge use the other one."""

import json

from asr_server.client.conftest import answering
from asr_server.client.speech import SpeakingVoice, SpeechClient


def test_only_what_is_stated_is_sent():
    """The rest is the server's to decide; half a character reaches it too."""
    with answering(b"ID3") as (base, sent), SpeechClient(base) as client:
        assert b"".join(client.stream("Hello.\ud83d", voice="nova", format="flac")) == b"ID3"
    assert [json.loads(body) for body in sent] == [
        {"input": "Hello.\ud83d", "voice": "nova", "response_format": "flac"}
    ]


def test_voices_have_the_name_that_they_stand_for():
    """A voice's own name stands for none."""
    listed = [
        {"id": "alloy", "object": "voice", "description": "a man", "languages": ["en"], "alias_of": "m3"},
        {"id": "m3", "object": "voice", "description": "a man", "languages": ["en"], "alias_of": None},
    ]
    with answering(json.dumps({"data": listed}).encode()) as (base, _), SpeechClient(base) as client:
        assert client.voices() == [
            SpeakingVoice("alloy", "a man", ("en",), "m3"),
            SpeakingVoice("m3", "a man", ("en",)),
        ]
