"""The engine's own guarantees: memory, order of work, and rows that fail alone. `conformance_test` has the contract."""

from dataclasses import replace

import pytest

from asr_server.core.errors import EngineOutOfMemory, ModelUnavailable
from asr_server.engine.conftest import ends, planned
from asr_server.engine.loops import token_budget
from asr_server.engine.protocol import Finish, Utterance
from asr_server.features.moonshine import package
from asr_server.features.moonshine.engine import MoonshineEngine
from asr_server.features.moonshine.model import MoonshineModel
from asr_server.schedule.model import RowFailed


def _engine(**values):
    return MoonshineEngine(planned(model_id=package.MODEL_ID, **values))


@pytest.fixture(scope="module")
def engine():
    made = _engine()
    made.load()
    return made


def test_one_clip_is_encoded_at_a_time(engine, speech):
    """An utterance that comes meanwhile is admitted after the next step, and may be more urgent."""
    engine.admit(1, Utterance(speech))
    assert engine.free_slots == 0
    list(engine.step())
    assert engine.free_slots == engine.info.slots - 1
    engine.drop(1)


def test_a_row_that_breaks_a_pass_fails_alone(engine, speech, monkeypatch):
    """The others have the answers that they have without it. A clip fails for want of memory, and not for its audio."""
    clips = [Utterance(own) for own in (speech, speech[: len(speech) // 2], speech[len(speech) // 2 :])]
    before, _ = ends(engine, *clips)
    forward, encode = MoonshineModel.forward, MoonshineModel.encode

    def broken(model, rows, proposals):
        if any(row.key == 1 and len(row.ids) == 2 for row, _ in rows):
            raise FloatingPointError("provoked")
        return forward(model, rows, proposals)

    def short(model, audio, capacity):
        if len(audio) == len(speech):
            raise MemoryError
        return encode(model, audio, capacity)

    monkeypatch.setattr(MoonshineModel, "forward", broken)
    after, _ = ends(engine, *clips)
    assert isinstance(after[1], RowFailed)
    assert [after[key].value.ids for key in (0, 2)] == [before[key].value.ids for key in (0, 2)]
    monkeypatch.setattr(MoonshineModel, "encode", short)
    after, _ = ends(engine, clips[2], clips[0])
    assert after[0].value.ids == before[2].value.ids
    assert isinstance(after[1].error, EngineOutOfMemory)
    assert engine.free_slots == engine.info.slots


def test_files_that_cannot_be_read_are_reported_with_the_remedy(tmp_path, monkeypatch):
    files = package.locate()
    for name in ("encoder", "decoder", "tokenizer"):
        damaged = tmp_path / name
        damaged.write_bytes(getattr(files, name).read_bytes()[:100_000])
        monkeypatch.setattr(package, "locate", lambda name=name, damaged=damaged: replace(files, **{name: damaged}))
        with pytest.raises(ModelUnavailable, match=r"cannot be loaded .* pip install --force-reinstall"):
            _engine().load()


def test_committed_words_do_not_count_against_the_budget(engine, speech):
    """An answer behind more forced tokens than the audio would have of its own still has tokens of its own."""
    said = ends(engine, Utterance(speech))[0][0].value.ids
    prefix = (said * 64)[: token_budget(len(speech)) + 8]
    assert ends(engine, Utterance(speech, prefix=prefix))[0][0].value.finish is not Finish.BUDGET
