"""A process of eSpeak NG."""

import pytest

from asr_server.features.speech_output.engines.espeak import package
from asr_server.features.speech_output.engines.espeak.process import EspeakProcess


@pytest.fixture
def espeak():
    made = EspeakProcess(package.find())
    yield made
    made.end()
