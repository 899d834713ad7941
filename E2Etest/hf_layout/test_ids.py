"""The bundled checkpoints in the layout of transformers 5, written by that library's own classes: the same answers."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

from asr_server import demo
from asr_server.core import settings
from asr_server.engine import capabilities, plan
from asr_server.engine.protocol import AlignItem, Utterance
from asr_server.engine.qwen_asr.aligner import QwenAligner
from E2Etest.drive import recordings
from tools.bench import engines

pytestmark = [pytest.mark.nightly, pytest.mark.torch, pytest.mark.timeout(900)]

PACKAGES = ("transformers==5.23.0", "tokenizers==0.23.3", "huggingface_hub==2.4.0")


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    """Directories of the recogniser and the aligner. The library is installed apart, since the SDK needs version 4."""
    folder = tmp_path_factory.mktemp("transformers5")
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder / "site")
    subprocess.run([*pip, *PACKAGES], check=True)
    environment = {**os.environ, "PYTHONPATH": str(folder / "site")}
    for name, source in (("model", demo.checkpoint_path()), ("aligner", demo.aligner_path())):
        writer = Path(__file__).with_name("write.py")
        subprocess.run([sys.executable, writer, source, folder / name], check=True, env=environment)
    return folder


def test_the_ids_are_those_of_the_original_layout(converted):
    """In float32, with detected and forced languages, with a context, over several encoder windows."""
    speech = recordings.samples().astype(np.float32) / 32768
    asked = [Utterance(soundfile.read(clip.path, dtype="float32")[0]) for clip in recordings.clips()[:6]]
    asked += [Utterance(speech, language="English", context="kitchen lights"), Utterance(np.tile(speech, 6))]
    found = []
    for model_id in ("demo", str(converted / "model")):
        engine = engines.load(model_id, dtype="float32", quantize="none")
        hypotheses, _ = engines.run(engine, asked)
        found.append([(hypothesis.ids, hypothesis.text, hypothesis.language) for hypothesis in hypotheses])
        engine.unload()
    assert found[0] == found[1]
    assert any(ids for ids, _, _ in found[0])


def test_the_aligner_places_words_where_the_original_does(converted):
    """The head has another name, and the length of a slot is in the processor's file."""
    audio = recordings.samples().astype(np.float32) / 32768
    found = []
    for aligner_id in ("demo", str(converted / "aligner")):
        chosen = settings.load(_env_file=None, model_id="demo", forced_aligner_id=aligner_id, dtype="float32")
        aligner = QwenAligner(plan.resolve(chosen, capabilities.probe()))
        aligner.locate()
        aligner.load()
        *_, results = aligner.align([AlignItem(audio, recordings.sample()[1], "English")])
        found.append(results)
        aligner.unload()
    assert found[0] == found[1]
