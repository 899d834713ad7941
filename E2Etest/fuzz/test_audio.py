"""Recordings with damaged heads, through the real decoder."""

import functools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from E2Etest.drive import recordings
from E2Etest.fuzz.effort import effort

pytestmark = [pytest.mark.nightly, pytest.mark.integration, pytest.mark.guarantee("fuzzing")]

CONTAINERS = {
    "wav": ("wav", "pcm_s16le"),
    "flac": ("flac", "flac"),
    "mp3": ("mp3", "mp3"),
    "opus": ("ogg", "libopus"),
    "mp4": ("mp4", "aac"),
    "webm": ("webm", "libopus"),
    "aiff": ("aiff", "pcm_s16be"),
}
# What lengths, counts and offsets are wrong at.
EDGES = [n.to_bytes(4, order) for n in (0, 1, 2**31 - 1, 2**31, 2**32 - 1) for order in ("big", "little")]


@functools.cache
def _file(kind):
    """One second of the sample, in this container."""
    container, codec = CONTAINERS[kind]
    return recordings.encoded(container, codec, recordings.samples()[:16_000])


@st.composite
def damaged(draw, kind):
    """A file with bytes changed, mostly near its start and its end where the headers are; cut, doubled or moved."""
    data = bytearray(_file(kind))
    for _ in range(draw(st.integers(1, 6))):
        ends = st.one_of(st.integers(0, min(255, len(data) - 1)), st.integers(max(0, len(data) - 512), len(data) - 1))
        at = draw(st.one_of(ends, st.integers(0, len(data) - 1)))
        match draw(st.sampled_from(["set", "edge", "insert", "delete", "double"])):
            case "set":
                data[at] = draw(st.integers(0, 255))
            case "edge":
                data[at : at + 4] = draw(st.sampled_from(EDGES))
            case "insert":
                data[at:at] = draw(st.binary(min_size=1, max_size=40))
            case "delete":
                del data[at : at + draw(st.integers(1, 200))]
            case _:
                data[at:at] = data[at : at + draw(st.integers(1, 2_000))]
        if not data:
            return b"\0"
    return bytes(data)


@pytest.mark.parametrize("kind", CONTAINERS)
@pytest.mark.timeout(0)
def test_a_damaged_recording_is_heard_or_refused(guarded, timed, kind):
    """200 or 400 in time, whatever the damage; the next good one is heard."""

    @effort(95)
    @given(damaged(kind) | st.binary(max_size=2_000).map(lambda rest: _file(kind)[:12] + rest))
    def check(data):
        with timed():
            answer = guarded.transcribe(data, name="a")
        assert answer.status_code in (200, 400), answer.text

    check()
    assert guarded.transcribe(_file(kind)).status_code == 200
