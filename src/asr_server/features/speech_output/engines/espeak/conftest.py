"""A process of eSpeak NG."""

import pytest

from asr_server.features.speech_output.engines.espeak import package
from asr_server.features.speech_output.engines.espeak.process import EspeakProcess


def running():
    made = EspeakProcess(package.find())
    yield made
    made.end()


espeak = pytest.fixture(running)
shared = pytest.fixture(running, scope="module")
