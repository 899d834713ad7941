"""The blocking speech client; the command and the bridge use the other one."""

import json

from asr_server.client.conftest import answering
from asr_server.client.speech import SpeechClient


def test_only_what_is_stated_is_sent():
    """The rest is the server's to decide; half a character reaches it too."""
    with answering(b"ID3") as (base, sent), SpeechClient(base) as client:
        assert b"".join(client.stream("Hello.\ud83d", voice="nova", format="flac")) == b"ID3"
    assert [json.loads(body) for body in sent] == [
        {"input": "Hello.\ud83d", "voice": "nova", "response_format": "flac"}
    ]
