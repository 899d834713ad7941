"""A server with the model loaded, and recordings as PCM."""

import numpy as np
import pytest

from E2Etest import recordings
from E2Etest.live.session import data, finals, stream
from E2Etest.process import ready


@pytest.fixture(scope="session")
def live_server(tmp_path_factory):
    """A running server that has transcribed once."""
    log = tmp_path_factory.mktemp("live") / "log"
    with ready(log) as server:
        yield server


@pytest.fixture(scope="session")
def speech():
    """The bundled recording and a pause that ends it: int16 at 16 kHz."""
    return np.concatenate([recordings.samples(), np.zeros(14_400, np.int16)])


@pytest.fixture(scope="session")
def talk(speech):
    """The same, twice."""
    return np.concatenate([speech, speech])


@pytest.fixture(scope="session")
def said(live_server, speech):
    """What the model hears in `speech`: right or wrong, it must hear the same however it comes."""
    ((text, *_),) = finals(stream(live_server, [data(speech)]))
    assert text
    return text
