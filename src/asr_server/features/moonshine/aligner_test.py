"""Word times from attention, on clips whose synthesisers told when each word begins and ends."""

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile

from asr_server.core.errors import EngineOutOfMemory, TranscriptionFailed, UnsupportedLanguage
from asr_server.engine import core
from asr_server.engine.conftest import aligned, planned
from asr_server.engine.protocol import AlignItem, Alignment
from asr_server.features.moonshine.model import MoonshineModel
from asr_server.subtitle import alignment

FOLDER = Path(__file__).parents[4] / "E2Etest" / "audio" / "aligned"


@pytest.fixture(scope="module")
def aligner():
    plan = planned(model_id="moonshine-tiny-en")
    engine = core.build_engine(plan)
    engine.load()
    made = core.build_aligner(plan, engine)
    made.load()
    return made


@pytest.fixture(scope="module")
def clips():
    """English clips of under 6 s: each its row of the manifest and its audio."""
    rows = json.loads((FOLDER / "manifest.json").read_text(encoding="utf-8"))
    read = [(row, soundfile.read(FOLDER / row["file"], dtype="float32")[0]) for row in rows]
    return [(row, audio) for row, audio in read if row["language"] == "English" and len(audio) < 6 * 16_000]


def test_words_are_placed_better_than_by_their_syllables(aligner, clips):
    """In voices and sentences that the model mishears, the mean error is 60 ms and not 144."""
    found, estimated = [], []
    for row, audio in clips:
        (times,) = aligned(aligner, [AlignItem(audio, row["text"], "English")])
        assert [piece.text for piece in times.pieces] == [word for word, _, _ in row["words_ms"]]
        estimate = alignment.estimate(row["text"], "English", [(row["words_ms"][0][1], row["words_ms"][-1][2])])
        for distances, words in ((found, times.pieces), (estimated, estimate)):
            for word, (_, start_ms, end_ms) in zip(words, row["words_ms"], strict=True):
                distances += [abs(word.start_ms - start_ms), abs(word.end_ms - end_ms)]
    assert np.mean(found) < 0.6 * np.mean(estimated)


def test_punctuation_silence_and_case_do_not_move_words(aligner, clips):
    """Silence before and behind belongs to no word, and a pause to none either."""
    row, audio = clips[1]
    words = row["text"].split()
    half = len(words) // 2
    cut = 16 * (row["words_ms"][half - 1][2] + row["words_ms"][half][1]) // 2
    silence = np.zeros(16_000, np.float32)
    text = f"{' '.join(words[:half]).capitalize()}, {' '.join(words[half:])}."
    pauses = np.concatenate([silence, audio[:cut], silence, audio[cut:], silence])
    asked = [(audio, row["text"]), (pauses, text), (audio, f"  \n{row['text']} ")]
    plain, paused, indented = aligned(aligner, [AlignItem(own, said, "English") for own, said in asked])
    times, moved = ([(piece.start_ms, piece.end_ms) for piece in found.pieces] for found in (plain, paused))
    by_ms = np.array([1000] * half + [2000] * (len(words) - half))[:, None]
    assert (np.abs(np.array(moved) - by_ms - times).mean(axis=0) < 100).all()
    assert indented == plain


def test_an_item_that_fails_fails_alone(aligner, clips, monkeypatch):
    attention, audio = MoonshineModel.attention, clips[0][1]
    broken, huge = audio[:-1], audio[:-2]
    faults = {len(broken): RuntimeError("fault"), len(huge): MemoryError()}

    def faulty(model, samples, ids):
        if len(samples) in faults:
            raise faults[len(samples)]
        return attention(model, samples, ids)

    monkeypatch.setattr(MoonshineModel, "attention", faulty)
    asked = [(audio, "English"), (audio, "French"), (broken, "English"), (huge, "English"), (audio, "English")]
    first, *errors, last = aligned(aligner, [AlignItem(own, "good", language) for own, language in asked])
    assert first == last
    assert isinstance(first, Alignment)
    assert [type(error) for error in errors] == [UnsupportedLanguage, TranscriptionFailed, EngineOutOfMemory]
