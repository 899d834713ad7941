"""Fixtures of the engine tests: the bundled checkpoint loaded once, and speech to feed it."""

import json
import shutil

import numpy as np
import pytest

from asr_server import demo, feature_list
from asr_server.core import settings
from asr_server.engine import core
from asr_server.engine.capabilities import Capabilities, probe
from asr_server.engine.feature import Plan
from asr_server.engine.protocol import AlignItem, Utterance
from asr_server.engine.qwen_asr.aligner import QwenAligner
from asr_server.engine.qwen_asr.engine import QwenEngine
from asr_server.schedule.model import RowDelta, RowDone, RowFailed
from E2Etest.drive.recordings import waveform

TEXTS = ("hello turn on the kitchen lights", "你好 打开电灯", "seven, seven: SEVEN!", "play", "one 三 two")
HASH = "a" * 40  # of a commit
NO_GPU = Capabilities(gpu=False, torch_cuda=False)
GPU = Capabilities(gpu=True, torch_cuda=True)


def planned(machine=NO_GPU, **values):
    """Return the plan for these settings."""
    return feature_list.resolve(settings.load(_env_file=None, **values), machine)


def aligned(aligner, items):
    """Return what an aligner finds for items, after all parts of the work."""
    *_, found = aligner.align(items)
    return found


def causal_checkpoint(directory, tokens):
    """Copy the demonstration model with a causal encoder that attends to that many tokens. Return the copy's path."""
    if not directory.exists():
        shutil.copytree(demo.checkpoint_path(), directory)
        config = json.loads((directory / "config.json").read_text())
        config["thinker_config"]["audio_config"]["causal_left_tokens"] = tokens
        (directory / "config.json").write_text(json.dumps(config))
    return directory


def qwen(model_id="demo", *, rows=4, budget_mb=0, options=(), callbacks=(), **values):
    """Return an engine of Qwen3-ASR, not loaded: in torch, unless `values` of the plan name OpenVINO."""
    chosen = {"device": "cpu", "dtype": "float32", **values}
    plan = Plan("qwen", str(model_id), max_batch=rows, kv_budget_mb=budget_mb, options=options, **chosen)
    return QwenEngine(plan, *callbacks)


def loaded_qwen(model_id="demo", **values):
    engine = qwen(model_id, **values)
    engine.load()
    return engine


def loaded_aligner(aligner_id="demo", *, on_progress=lambda: None, **values):
    """Return the aligner of Qwen3-ASR; `values` of the plan."""
    plan = Plan("qwen", "demo", "cpu", "float32", 4, 0, (), str(aligner_id), **values)
    aligner = QwenAligner(plan, on_progress)
    aligner.locate()
    aligner.load()
    return aligner


def ends(engine, *utterances):
    """Admit utterances together. Return how each of them ends, and the ids of all its deltas."""
    for key, utterance in enumerate(utterances):
        engine.admit(key, utterance)
    found, deltas = {}, dict.fromkeys(range(len(utterances)), ())
    for _ in range(3_000):
        for outcome in engine.step():
            if isinstance(outcome, RowDelta):
                deltas[outcome.key] += outcome.value.ids
            else:
                found[outcome.key] = outcome
        if len(found) == len(utterances):
            break
    return [found[key] for key in deltas], list(deltas.values())


def until_decoding(engine, rows=1):
    """Run steps until the prompts of `rows` rows are computed."""
    while len(engine.runtime.decoder.decoding) < rows:
        list(engine.step())


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache directory that the hub's library looks at."""
    directory = tmp_path / "hub"
    directory.mkdir()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(directory))
    monkeypatch.setattr("huggingface_hub.utils._cache_manager.HF_HUB_CACHE", str(directory))
    return directory


def downloaded(cache, name, *, source=None, without=(), branch="main", commit=HASH, **config):
    """Lay out a checkpoint, by default the bundled one, as a snapshot of `name`: blobs, and links to them."""
    repo = cache / f"models--{name.replace('/', '--')}"
    snapshot, blobs = repo / "snapshots" / commit, repo / "blobs" / commit
    for directory in (snapshot, blobs, repo / "refs"):
        directory.mkdir(parents=True, exist_ok=True)
    (repo / "refs" / branch).write_text(commit)
    for file in (source or demo.checkpoint_path()).iterdir():
        if file.name not in without:
            shutil.copy(file, blobs / file.name)
            (snapshot / file.name).symlink_to(f"../../blobs/{commit}/{file.name}")
    if config:
        path = blobs / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **config}))
    return snapshot


@pytest.fixture(scope="session")
def speech():
    """The bundled recording: float32 (n,), 16 kHz."""
    return waveform(demo.sample().recording)


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


@pytest.fixture(scope="module")
def items(clips):
    """Clips of many lengths, a quarter of a second to three encoder windows, each with some text."""
    return [AlignItem(clip, TEXTS[n % len(TEXTS)], "English") for n, clip in enumerate([*clips, clips[0][:4_000]])]


@pytest.fixture(scope="session")
def make_engine():
    """Loaded engines by batch size, each made once."""
    made = {}

    def make(max_batch=8):
        if max_batch not in made:
            made[max_batch] = core.build_engine(planned(probe(), model_id="demo", max_batch=max_batch))
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
