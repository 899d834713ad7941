"""The encoder in ONNX Runtime against torch's, on the bundled checkpoint, which is exported here."""

import gc
import json
import shutil
import weakref

import onnx
import pytest
import torch
from onnx import numpy_helper
from safetensors.torch import load_file, save_file
from torch.testing import assert_close

from asr_server import demo
from asr_server.core.errors import ModelUnavailable
from asr_server.engine.protocol import Utterance
from asr_server.engine.qwen_asr import loading
from asr_server.features.encoders import exported_encoder, onnx_export
from asr_server.features.encoders.conftest import loaded, parts
from asr_server.features.encoders.exported_encoder import CPU, METADATA_KEY, OnnxEncoder

pytestmark = [pytest.mark.torch, pytest.mark.nightly, pytest.mark.timeout(600)]


@torch.inference_mode()
def test_its_numbers_are_torchs_for_any_length_and_those_that_a_window_has_alone(onnx_file):
    """Within 1e-3; windows of other clips in the same call change not one bit."""
    encoder = OnnxEncoder(onnx_file, parts().tower, CPU)
    exact = exported_encoder.exact_encoder(parts())
    generator = torch.Generator().manual_seed(1)
    lengths = 50, 99, 100, 101, 250, 800, 801, 1000, 2150
    clips = [encoder.windows(torch.rand(128, frames, generator=generator) * 2 - 1) for frames in lengths]
    together = iter(encoder([window for own in clips for window in own]))
    for own in clips:
        found = [next(together) for _ in own]
        assert_close(torch.cat(found), torch.cat(exact(own)), atol=1e-3, rtol=0)
        for window, embeddings in zip(own, found, strict=True):
            assert torch.equal(encoder([window])[0], embeddings)


def test_the_engine_answers_as_with_torchs_encoder_whose_weights_are_freed(onnx_file, clips, alone, run, monkeypatch):
    """The option of the plan shows what the comparison found."""
    kept, load = [], loading.load

    def seen(*args, **options):
        found = load(*args, **options)
        kept.extend(weakref.ref(weight) for weight in found.tower.parameters())
        return found

    monkeypatch.setattr(loading, "load", seen)
    engine = loaded(model_id="demo", encoder_path=str(onnx_file))
    gc.collect()
    assert len(kept) > 20
    assert not [weight for weight in kept if weight() is not None]
    assert [answer.ids for answer in run(engine, [Utterance(clip) for clip in clips])] == [own.ids for own in alone]
    (option,) = (option for option in engine.info.options if option.name == "encoder_path")
    assert option.active
    assert option.reason.startswith("float32; its numbers differ from torch's")


def test_another_checkpoint_is_refused(onnx_file, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(demo.checkpoint_path(), other)
    weights = load_file(other / "model.safetensors")
    weights["thinker.audio_tower.ln_post.bias"][0] += 1
    save_file(weights, other / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelUnavailable, match="another checkpoint than other"):
        exported_encoder.compared(OnnxEncoder(onnx_file, parts().tower, CPU), parts(other))


def _other_numbers(model):
    bias = next(own for own in model.graph.initializer if list(own.dims) == [32])
    bias.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(bias) + 0.01, bias.name))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_other_numbers, r"differ from torch's in float32 by at most \d.*at most 0.001 is allowed"),
        # Somebody else's model may have other inputs.
        (lambda model: model.ClearField("metadata_props"), "no encoder that `asr-server export` made"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(onnx_file, tmp_path, change, words):
    model = onnx.load(str(onnx_file))
    change(model)
    onnx.save(model, str(tmp_path / "changed.onnx"))
    with pytest.raises(ModelUnavailable, match=words):
        loaded(model_id="demo", encoder_path=str(tmp_path / "changed.onnx"))


def test_what_is_no_model_is_refused(tmp_path):
    (tmp_path / "x.onnx").write_bytes(b"no model at all")
    with pytest.raises(ModelUnavailable, match=r"x\.onnx cannot be loaded"):
        loaded(model_id="demo", encoder_path=str(tmp_path / "x.onnx"))


def test_eight_bits_agree_and_a_window_is_what_it_is_alone(tmp_path, clips, speech, run):
    """Within the bound of the format; the recording's words are right. What noise is taken for may differ."""
    output = tmp_path / "int8.onnx"
    found = onnx_export.export(demo.checkpoint_path(), output, int8=True)
    assert 1e-3 < found.relative < exported_encoder.SHORT_BOUND
    metadata = {own.key: own.value for own in onnx.load(str(output)).metadata_props}
    assert json.loads(metadata[METADATA_KEY])["format"] == "int8"
    engine = loaded(model_id="demo", encoder_path=str(output), max_batch=8)
    together = run(engine, [Utterance(clip) for clip in clips])
    assert run(engine, [Utterance(speech)])[0].text == demo.sample().text
    assert [own.ids for own in together] == [run(engine, [Utterance(clip)])[0].ids for clip in clips]
