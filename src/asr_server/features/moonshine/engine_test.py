"""The engine's own guarantees: memory, order of work, and rows that fail alone. `conformance_test` has the contract."""

import gc
from dataclasses import replace

import pytest

from asr_server import feature_list
from asr_server.core import settings
from asr_server.core.errors import EngineOutOfMemory, ModelUnavailable
from asr_server.engine.capabilities import Capabilities
from asr_server.engine.loops import token_budget
from asr_server.engine.protocol import Finish, Utterance
from asr_server.features.moonshine import package
from asr_server.features.moonshine.engine import MoonshineEngine
from asr_server.features.moonshine.model import MoonshineModel
from asr_server.schedule.ports import RowDone, RowFailed


def _engine(**values):
    resolved = feature_list.resolve(
        settings.load(_env_file=None, model_id=package.MODEL_ID, **values), Capabilities(gpu=False, torch_cuda=False)
    )
    return MoonshineEngine(resolved)


@pytest.fixture
def engine():
    made = _engine()
    made.load()
    return made


def _ends(engine, *utterances):
    """Return how each row ended, by its number."""
    waiting, ended = list(enumerate(utterances)), {}
    while len(ended) < len(utterances):
        while waiting and engine.free_slots:
            engine.admit(*waiting.pop(0))
        for outcome in engine.step():
            if isinstance(outcome, RowDone | RowFailed):
                ended[outcome.key] = outcome
    return ended


@pytest.mark.nightly
def test_memory_bounds_the_rows():
    """A row of 20 s takes 13 MB; one is tried whatever the budget."""
    for budget_mb, slots in ((64, 5), (1, 1), (4096, 8)):
        made = _engine(kv_budget_mb=budget_mb)
        made.load()
        assert made.free_slots == made.info.slots == slots
        made.unload()
        assert made.info.slots == 0


def test_one_clip_is_encoded_at_a_time(engine, speech):
    """An utterance that comes while another waits to be encoded is admitted after the next step, and may be more
    urgent."""
    engine.admit(1, Utterance(speech))
    assert engine.free_slots == 0
    list(engine.step())
    assert engine.free_slots == engine.info.slots - 1


def test_a_row_that_breaks_a_pass_fails_alone(engine, speech, monkeypatch):
    """The others have the answers that they have without it."""
    clips = [Utterance(own) for own in (speech, speech[: len(speech) // 2], speech[len(speech) // 2 :])]
    before = _ends(engine, *clips)
    forward = MoonshineModel.forward

    def broken(model, rows, proposals):
        if any(row.key == 1 and len(row.ids) == 2 for row, _ in rows):
            raise FloatingPointError("provoked")
        return forward(model, rows, proposals)

    monkeypatch.setattr(MoonshineModel, "forward", broken)
    after = _ends(engine, *clips)
    assert isinstance(after[1], RowFailed)
    assert [after[key].value.ids for key in (0, 2)] == [before[key].value.ids for key in (0, 2)]
    assert engine.free_slots == engine.info.slots


def test_a_clip_for_which_memory_is_short_fails_alone(engine, speech, monkeypatch):
    """The clip fails for want of memory, and not for its audio."""
    encode = MoonshineModel.encode

    def short(model, audio, capacity):
        if len(audio) == len(speech):
            raise MemoryError
        return encode(model, audio, capacity)

    monkeypatch.setattr(MoonshineModel, "encode", short)
    ended = _ends(engine, Utterance(speech), Utterance(speech[: len(speech) // 2]))
    assert isinstance(ended[0].error, EngineOutOfMemory)
    assert ended[1].value.text


def test_files_that_cannot_be_read_are_reported_with_the_remedy(tmp_path, monkeypatch):
    """Whichever of the three is damaged."""
    files = package.locate()
    for name in ("encoder", "decoder", "tokenizer"):
        damaged = tmp_path / name
        damaged.write_bytes(getattr(files, name).read_bytes()[:100_000])
        monkeypatch.setattr(package, "locate", lambda name=name, damaged=damaged: replace(files, **{name: damaged}))
        with pytest.raises(ModelUnavailable, match=r"cannot be loaded .* pip install --force-reinstall"):
            _engine().load()


def test_committed_words_do_not_count_against_the_budget(engine, speech):
    """An answer behind more forced tokens than the audio would have of its own still has tokens of its own."""
    said = _ends(engine, Utterance(speech))[0].value.ids
    prefix = (said * 64)[: token_budget(len(speech)) + 8]
    assert _ends(engine, Utterance(speech, prefix=prefix))[0].value.finish is not Finish.BUDGET


def test_what_a_model_brings_is_set_aside_from_garbage_collection(engine):
    assert len(gc.get_objects()) < gc.get_freeze_count() / 10
    engine.unload()
    assert gc.get_freeze_count() == 0
