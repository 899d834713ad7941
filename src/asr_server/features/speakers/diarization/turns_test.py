"""The names of speakers."""

import pytest

from asr_server.features.speakers.diarization.turns import label


@pytest.mark.parametrize(("speaker", "name"), [(0, "A"), (25, "Z"), (26, "AA"), (51, "AZ"), (52, "BA"), (701, "ZZ")])
def test_letters_of_speakers(speaker, name):
    assert label(speaker) == name
