"""The aligner: the bundled one as it is, against the SDK's own, and with faults injected."""

import gc
import json
import shutil
import weakref
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from asr_server import demo
from asr_server.core.errors import EngineOutOfMemory, InvalidInput, TranscriptionFailed, UnsupportedLanguage
from asr_server.engine.conftest import aligned, loaded_aligner
from asr_server.engine.protocol import AlignItem, Alignment
from asr_server.engine.qwen_asr import files, torch_model
from asr_server.engine.qwen_asr.torch_model import TorchAligner

pytestmark = [pytest.mark.torch, pytest.mark.nightly]


@pytest.fixture(scope="module")
def aligner():
    return loaded_aligner()


def test_it_equals_the_sdk_where_that_needs_no_repair(aligner, items, speech):
    """Up to 8 s, where its missing mask does not matter, if its likeliest slots are in order; ours always are."""
    from qwen_asr.inference.qwen3_forced_aligner import Qwen3ForcedAligner

    sdk = Qwen3ForcedAligner.from_pretrained(str(demo.aligner_path()), dtype="float32")
    raw, repair = [], sdk.aligner_processor.fix_timestamp
    sdk.aligner_processor.fix_timestamp = lambda data: raw.append(data.tolist()) or repair(data)
    said = demo.sample().text.split()
    asked = [AlignItem(speech, " ".join(said[: count + 1]), "English") for count in range(len(said))]
    asked += [item for item in items if 8_000 <= len(item.audio) < 8 * 16_000]
    in_order = 0
    for item, ours in zip(asked, aligned(aligner, asked), strict=True):
        (theirs,) = sdk.align((item.audio, 16_000), item.text, item.language)
        last_s = len(item.audio) // 16 / 1000
        told = [(t.text, *(round(1000 * min(s, last_s)) for s in (t.start_time, t.end_time))) for t in theirs]
        assert [piece.text for piece in ours.pieces] == [text for text, *_ in told]
        if raw[-1] == sorted(raw[-1]):
            in_order += 1
            assert [(p.text, p.start_ms, p.end_ms) for p in ours.pieces] == told
    assert 4 <= in_order < len(asked)


def test_what_cannot_be_aligned_fails_alone(aligner, items):
    """A language it does not know, too much audio, audio that is none: an error of that row, the others aligned."""
    rows = [
        items[0],
        AlignItem(items[0].audio, "guten tag", "German"),
        items[1],
        AlignItem(np.zeros(16_000 * 33, np.float32), "hello", "English"),
        AlignItem(np.zeros((4, 4), np.float32), "hello", "English"),
    ]
    found = aligned(aligner, rows)
    assert found[0] == aligned(aligner, [items[0]])[0]
    assert found[2] == aligned(aligner, [items[1]])[0]
    kinds = Alignment, UnsupportedLanguage, Alignment, InvalidInput, TranscriptionFailed
    assert tuple(map(type, found)) == kinds


def test_out_of_memory_halves_the_batch(aligner, items, monkeypatch):
    """All rows are aligned as before with memory for two at a time. A single row without memory fails."""
    whole = aligned(aligner, items)
    make, sizes = TorchAligner.scores, []

    def small(self, rows, stamp):
        sizes.append(len(rows))
        if len(rows) > 2:
            raise MemoryError
        return make(self, rows, stamp)

    monkeypatch.setattr(TorchAligner, "scores", small)
    assert aligned(aligner, items) == whole
    assert max(sizes) == len(items)
    monkeypatch.setattr(TorchAligner, "scores", Mock(side_effect=MemoryError))
    assert [type(one) for one in aligned(aligner, items[:3])] == [EngineOutOfMemory] * 3


def test_unload_gives_the_weights_back(items, monkeypatch):
    models, load = [], torch_model.load_aligner

    def see(*given):
        models.append(weakref.ref(model := load(*given)))
        return model

    monkeypatch.setattr(torch_model, "load_aligner", see)
    aligner = loaded_aligner()
    aligned(aligner, items[:2])
    aligner.unload()
    gc.collect()
    assert [model() for model in models] == [None]


def test_a_pass_has_parts_between_which_other_work_goes_on(aligner, items, monkeypatch):
    """A part may end with a window or a layer. The inference mode of the pass is not in force in between."""
    whole = aligned(aligner, items)
    monkeypatch.setattr(torch_model, "PART_S", 0.0)
    config = files.read(demo.aligner_path()).thinker["text_config"]
    *parts, found = [(part, torch.is_inference_mode_enabled()) for part in aligner.align(items)]
    windows = sum(-(-len(item.audio) // (8 * 16_000)) for item in items)
    assert parts == [(None, False)] * (windows + config["num_hidden_layers"])
    assert found[0] == whole


def test_a_checkpoint_that_names_no_languages_has_those_of_the_release(tmp_path):
    """The eleven published ones, split by their own rules: Japanese and Korean have no blanks to go by."""
    copy = tmp_path / "aligner"
    shutil.copytree(demo.aligner_path(), copy)
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "support_languages": None}))
    aligner, audio = loaded_aligner(copy), np.zeros(32_000, np.float32)
    assert isinstance(aligned(aligner, [AlignItem(audio, "guten Tag", "German")])[0], Alignment)
    assert isinstance(aligned(aligner, [AlignItem(audio, "नमस्ते", "Hindi")])[0], UnsupportedLanguage)
    japanese, korean = aligned(
        aligner, [AlignItem(audio, "今日は天気です。", "Japanese"), AlignItem(audio, "안녕하세요 여러분.", "Korean")]
    )
    assert "".join(piece.text for piece in japanese.pieces) == "今日は天気です"
    assert len(japanese.pieces) > 1
    assert "".join(piece.text for piece in korean.pieces) == "안녕하세요여러분"
