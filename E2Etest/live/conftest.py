"""The text that the model recognises in the bundled recording."""

import pytest

from E2Etest.drive.session import data, finals, stream


@pytest.fixture(scope="session")
def said(server, speech):
    """Right or wrong, it must be the same however the audio comes."""
    ((text, *_),) = finals(stream(server, [data(speech)]))
    assert text
    return text
