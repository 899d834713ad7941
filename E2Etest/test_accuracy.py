"""Word errors of the demonstration model through the whole server, on voices that no training has seen."""

import pytest

from E2Etest import recordings

pytestmark = [pytest.mark.accuracy, pytest.mark.integration]


def _words(text, language):
    return list(text.replace(" ", "")) if language == "Chinese" else text.lower().split()


def _error_rate(server, clips):
    errors = total = 0
    for clip in clips:
        body = server.transcribe(clip.path.read_bytes()).json()
        said, heard = _words(clip.text, clip.language), _words(body["text"], clip.language)
        errors += recordings.word_errors(said, heard)
        total += len(said)
    return errors / total


def _kind(*kinds):
    found = [clip for clip in recordings.clips() if clip.kind in kinds]
    assert found
    return found
