"""The engine on a checkpoint of the released layout and vocabulary, its weights random."""

from dataclasses import replace

import numpy as np
import pytest

from asr_server.engine.conftest import loaded_aligner, loaded_qwen
from asr_server.engine.feature import OPENVINO
from asr_server.engine.protocol import Utterance
from asr_server.engine.qwen_asr import checkpoint, compiled_aligner, files
from asr_server.schedule.model import RowDone
from tools.checkpoints.recogniser import SHAPES, random_aligner

pytestmark = [pytest.mark.torch, pytest.mark.nightly]


@pytest.fixture(scope="module")
def engine(released_checkpoint):
    return loaded_qwen(released_checkpoint, rows=8)


@pytest.mark.parametrize("languages", [("German", "English"), ("Cantonese", "Macedonian", "Filipino"), ("Persian",)])
def test_random_weights_name_one_of_the_languages_that_may_be(engine, languages):
    """Answers are greedy, or sampled so hot that any token of the released vocabulary would come."""
    allowed = engine.runtime.prompts.beginnings(languages)
    rng, outcomes = np.random.default_rng(1), []
    for key in range(8):
        audio = rng.normal(0, 0.1, 16_000).astype(np.float32)
        engine.admit(key, Utterance(audio, languages=languages, temperature=4.0 * (key % 2), seed=key))
        while not outcomes or not isinstance(outcomes[-1], RowDone):
            outcomes += engine.step()
        answer = outcomes.pop().value
        (begun,) = [ids for ids in allowed if answer.ids[: len(ids)] == ids]
        assert answer.language in languages
        assert answer.language_logprob == pytest.approx(sum(answer.logprobs[: len(begun)]))
        assert len(answer.ids) > len(begun)
        outcomes.clear()


@pytest.mark.parametrize("content", [None, "{}"])
def test_the_end_tokens_known_by_name_are_those_that_the_sdk_has_built_in(released_checkpoint, tmp_path, content):
    """A released checkpoint without `eos_token_id` gets these, with its generation config or without it."""
    found = files.read(released_checkpoint)
    if content is not None:
        (tmp_path / "generation_config.json").write_text(content)
    assert replace(found, directory=tmp_path).end_ids() == found.end_ids() == {151_645, 151_643}


def test_an_aligner_of_the_released_layout_loads(monkeypatch):
    """The aligner has the released slots, languages and stamp."""
    models, load = [], compiled_aligner.load
    monkeypatch.setattr(compiled_aligner, "load", lambda *given: models.append(load(*given)) or models[0])
    directory = random_aligner(SHAPES["small"])
    assert checkpoint.locate(str(directory), aligner=True) == directory
    loaded_aligner(directory, runtime=OPENVINO)
    stamps = files.stamps(files.read(directory))
    assert (stamps.token, stamps.slot_ms, models[0].slots) == (151_705, 80, 5_000)
    assert "Cantonese" in stamps.languages
