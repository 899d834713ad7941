"""Where the bundled aligner puts words, against true borders in voices it never heard, through the engine's thread.

The clips were made by synthesisers that tell at which sample each word begins; their borders are in the manifest.
"""

import json

import numpy as np
import pytest
import soundfile

from asr_server import feature_list
from asr_server.core import settings
from asr_server.engine import capabilities, core
from asr_server.engine.protocol import AlignItem
from asr_server.schedule.job import Job, Priority
from asr_server.schedule.thread import EngineThread
from E2Etest.drive import recordings

pytestmark = [pytest.mark.accuracy, pytest.mark.nightly]

FOLDER = recordings.AUDIO / "aligned"
WAIT_S = 100


ROWS = json.loads((FOLDER / "manifest.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def distances():
    """For each clip of the manifest its row, and |told - true| of all its borders in ms."""
    resolved = feature_list.resolve(settings.load(_env_file=None, model_id="demo"), capabilities.probe())
    engine = core.build_aligning(resolved, idle_timeout_s=0)
    thread = EngineThread(engine, idle_timeout_s=0, poll_idle=engine.poll_idle)
    try:
        futures = [thread.submit(_job(row)) for row in ROWS]
        return [(row, _distances(row, future.result(WAIT_S))) for row, future in zip(ROWS, futures, strict=True)]
    finally:
        thread.close()


def _job(row):
    audio = soundfile.read(FOLDER / row["file"], dtype="float32")[0]
    return Job(AlignItem(audio, row["text"], row["language"]), priority=Priority.BULK, cost_s=len(audio) / 16_000)


def _distances(row, alignment):
    assert [piece.text for piece in alignment.pieces] == [word for word, _, _ in row["words_ms"]]
    told = [(piece.start_ms, piece.end_ms) for piece in alignment.pieces]
    return np.abs(np.array(told) - np.array([times for _, *times in row["words_ms"]])).ravel()


@pytest.mark.integration
def test_words_of_a_long_recording_are_placed_as_well_as_those_of_one_clip(server):
    """All English clips are one recording, divided by its recognised text: one word in six is wrong (35 and 125 ms)."""
    rows = [row for row in ROWS if row["language"] == "English"]
    parts, true = [], []
    for row in rows:
        begin_ms = sum(map(len, parts)) / 16
        true += [begin_ms + time for _, *times in row["words_ms"] for time in times]
        parts += [soundfile.read(FOLDER / row["file"], dtype="int16")[0], np.zeros(40_000, np.int16)]
    text = "\n".join(row["text"] for row in rows)
    words = server.post("/v1/audio/alignments", recordings.wav(np.concatenate(parts)), text=text).json()["words"]
    told = [word[at] for word in words for at in ("start", "end")]
    found = [abs(1000 * at - time) for at, time in zip(told, true, strict=True) if at is not None]
    assert len(found) >= 0.98 * len(true)
    assert np.mean(found) <= 40
    assert np.percentile(found, 95) <= 130


@pytest.mark.parametrize(
    ("language", "least", "mean_ms", "most_ms"), [("English", 100, 36, 105), ("Chinese", 30, 24, 55)]
)
def test_borders_of_words_in_voices_never_heard(distances, language, least, mean_ms, most_ms):
    """The mean and the 95th percentile stay near the card's figures (31 and 90 ms; the aim was 60 and 160), for
    Mandarin character by character (19 and 42 ms)."""
    found = np.concatenate([found for row, found in distances if row["language"] == language])
    assert len(found) > least
    assert found.mean() <= mean_ms
    assert np.percentile(found, 95) <= most_ms


def test_a_long_clip_is_aligned_to_its_end(distances):
    """Past two windows of the encoder the last ten words are found, if less well than others (41 ms)."""
    (found,) = [found for row, found in distances if row["words_ms"][-1][2] > 16_000]
    assert found[-20:].mean() <= 50
