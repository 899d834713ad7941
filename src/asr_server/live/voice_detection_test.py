"""Voice detection for many sessions on one thread."""

import asyncio
import wave
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from asr_server import demo
from asr_server.audio.vad import SpeechProbability
from asr_server.core.audio import FRAME_SAMPLES
from asr_server.live.machine.config import LiveMachineConfig
from asr_server.live.machine.events import Audio, Flush, Reset
from asr_server.live.machine.session import LiveMachine
from asr_server.live.voice_detection import VoiceDetector


@pytest.fixture(scope="module")
def pcm():
    """Four seconds of the bundled recording, a whole number of frames: bytes."""
    with wave.open(str(demo.sample().recording)) as recording:
        return recording.readframes(120 * FRAME_SAMPLES)


@pytest.fixture
def make():
    """Makes the detector of a session and its machine."""
    thread = ThreadPoolExecutor(1)
    yield lambda: (VoiceDetector(thread), LiveMachine(LiveMachineConfig(lambda rate_hz: None)))
    thread.shutdown()


async def _scores(session, *events):
    detector, machine = session
    found = []
    for event in events:
        frames = await detector.frames(machine, event)
        machine.receive(event, frames)
        found += [frame.probability for frame in frames]
    return found


async def test_scores_do_not_depend_on_pieces_or_on_other_sessions(make, pcm):
    """Sessions that send pieces of seven sizes at the same time: each gets the scores of the whole, in order."""
    audio = np.frombuffer(pcm, "<i2").astype(np.float32) / 32_768
    whole = SpeechProbability().push(audio)
    pieces = [[Audio(pcm[at : at + size]) for at in range(0, len(pcm), size)] for size in range(640, 7_000, 960)]
    for scores in await asyncio.gather(*(_scores(make(), *each) for each in pieces)):
        assert np.abs(np.array(scores) - whole).max() < 1e-5


async def test_a_reset_begins_another_stream(make, pcm):
    """What was said before it has no effect on the scores behind it."""
    session, words = make(), Audio(pcm)
    first = await _scores(session, words)
    assert await _scores(session, Reset(), words) == first
    assert await _scores(session, words) != first


async def test_the_last_frame_before_a_flush_is_filled_with_silence(make):
    """It is scored, and stays as long as it is."""
    detector, machine = make()
    assert await _scores((detector, machine), Audio(bytes(2 * 400))) == []
    (last,) = await detector.frames(machine, Flush())
    assert len(last.samples) == 400
    assert 0 <= last.probability < 0.5
