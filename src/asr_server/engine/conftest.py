"""Fixtures of the engine tests: the bundled checkpoint loaded once, and speech to feed it."""

import wave

import numpy as np
import pytest

from asr_server import demo
from asr_server.core import settings
from asr_server.engine import capabilities, core, plan
from asr_server.engine.protocol import Utterance
from asr_server.schedule.ports import RowDone, RowFailed


def aligned(aligner, items):
    """Return what an aligner finds for items, after all parts of the work."""
    *_, found = aligner.align(items)
    return found


@pytest.fixture(scope="session")
def speech():
    """The bundled recording: float32 (n,), 16 kHz."""
    with wave.open(str(demo.sample().recording)) as recording:
        frames = recording.readframes(recording.getnframes())
    return np.frombuffer(frames, np.int16).astype(np.float32) / 32768


@pytest.fixture(scope="session")
def clips(speech):
    """Clips of different length and content, the longest over two encoder windows."""
    rng = np.random.default_rng(7)
    quiet = rng.normal(0, 1e-3, 16_000).astype(np.float32)
    return [
        speech,
        speech[: len(speech) // 2],
        np.concatenate([speech, quiet, speech]),
        np.concatenate([speech, speech, speech, quiet, speech]),
        quiet,
        speech[::-1].copy(),
    ]


@pytest.fixture(scope="session")
def make_engine():
    """Loaded engines by batch size, each made once."""
    made = {}

    def make(max_batch=8):
        if max_batch not in made:
            resolved = plan.resolve(
                settings.load(_env_file=None, model_id="demo", max_batch=max_batch), capabilities.probe()
            )
            made[max_batch] = core.build_engine(resolved)
            made[max_batch].load()
        return made[max_batch]

    return make


@pytest.fixture(scope="session")
def run():
    """Run utterances through an engine together, admitting as many as fit; hypotheses in the order given."""

    def run(engine, utterances):
        waiting, done = list(enumerate(utterances)), {}
        while len(done) < len(utterances):
            while waiting and engine.free_slots:
                engine.admit(*waiting.pop(0))
            for outcome in engine.step():
                if isinstance(outcome, RowFailed):
                    raise outcome.error
                if isinstance(outcome, RowDone):
                    done[outcome.key] = outcome.value
        return [done[i] for i in range(len(utterances))]

    return run


@pytest.fixture(scope="session")
def alone(make_engine, run, clips):
    """Return each clip's hypothesis when it has the engine for itself."""
    return [run(make_engine(1), [Utterance(clip)])[0] for clip in clips]


@pytest.fixture(scope="session")
def released_tokenizer():
    """The tokenizer of the released checkpoints, as the SDK loads it. Its files are made on first use, in 5 s."""
    from transformers import AutoTokenizer

    from tools.checkpoints.recogniser import released_tokenizer

    return AutoTokenizer.from_pretrained(released_tokenizer(), fix_mistral_regex=True)


@pytest.fixture(scope="session")
def released_checkpoint():
    """A small checkpoint of the released layout and vocabulary with random weights, made on first use."""
    from tools.checkpoints.recogniser import random_checkpoint

    return random_checkpoint("small")
