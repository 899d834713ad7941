"""The encoders of a plan."""

import json
from dataclasses import replace

import pytest

from asr_server.engine import plan
from asr_server.engine.conftest import GPU, NO_GPU, planned
from asr_server.engine.gpu import Build, Driver, Gpus
from asr_server.features.encoders.options import CAUSAL_KEY, TENSORRT_MAGIC

ROCM = replace(GPU, gpus=Gpus(driver=Driver.AMD, build=Build.ROCM))
XEON = replace(NO_GPU, cpu_flags=frozenset(("avx2", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8")))
# What the files of encoders begin with.
ONNX, TENSORRT = b"\x08\x08", TENSORRT_MAGIC


@pytest.mark.parametrize(
    ("beginning", "model_id", "machine", "words"),
    [
        (TENSORRT, "o/model", NO_GPU, "not run on an NVIDIA GPU and the package tensorrt is not installed"),
        (TENSORRT, "o/model", GPU, "is for TensorRT, and the package tensorrt is not installed"),
        (TENSORRT, "o/model", replace(ROCM, packages=frozenset(["tensorrt"])), "not run on an NVIDIA GPU; unset"),
        (ONNX, "o/model", GPU, "onnxruntime-gpu in place of onnxruntime"),
        (ONNX, "o/model", replace(XEON, torch=False), "needs torch, which is not installed"),
        (ONNX, "moonshine-tiny-en", NO_GPU, "is for Qwen3-ASR"),
    ],
)
def test_encoders_that_cannot_run_refuse(tmp_path, beginning, model_id, machine, words):
    (tmp_path / "encoder").write_bytes(beginning)
    with pytest.raises(plan.PlanError, match=f"ENCODER_PATH.*{words}"):
        planned(machine, model_id=model_id, encoder_path=str(tmp_path / "encoder"))


def test_a_checkpoint_for_a_causal_encoder_has_it_where_torch_runs(tmp_path):
    assert not planned(XEON, model_id="o/model").is_active("causal_encoder")
    config = {"thinker_config": {"audio_config": {CAUSAL_KEY: 104}}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert planned(XEON, model_id=str(tmp_path)).is_active("causal_encoder")
    with pytest.raises(plan.PlanError, match="tuned for a causal encoder, which needs torch"):
        planned(replace(XEON, torch=False), model_id=str(tmp_path))


def test_an_encoder_file_that_is_missing_refuses():
    machine = replace(GPU, packages=frozenset(["tensorrt", "onnxruntime-gpu"]))
    with pytest.raises(plan.PlanError, match="ENCODER_PATH=/nowhere/x: there is no such file"):
        planned(machine, encoder_path="/nowhere/x")
