"""Plans with the English model."""

from dataclasses import replace

import pytest

from asr_server.engine import plan
from asr_server.engine.conftest import GPU, NO_GPU, planned

SLIM = replace(NO_GPU, qwen=False)
ENGLISH = "moonshine-tiny-en"


def _embedded(machine):
    return replace(machine, qwen=False, packages=frozenset({"moonshine-voice"}))


def test_the_english_model_runs_on_the_cpu_and_aligns_with_its_own_weights():
    """The CPU is used also where there is a GPU; another aligner that is named is taken, and none without a name."""
    resolved = planned(GPU, model_id=ENGLISH)
    assert (resolved.engine, resolved.device, resolved.dtype) == ("moonshine", "cpu", "float32")
    assert (resolved.aligner_id, resolved.traits.aligns) == (ENGLISH, True)
    assert resolved.traits.languages == ("English",)
    assert "no 8-bit layers" in resolved.reason("quantize")
    named = planned(NO_GPU, model_id=ENGLISH, forced_aligner_id="demo")
    assert (named.aligner_id, named.traits.aligns) == ("demo", True)


@pytest.mark.parametrize(
    ("machine", "values", "words"),
    [
        (GPU, {"model_id": ENGLISH, "device": "cuda"}, "DEVICE=cuda.*CPU only"),
        (GPU, {"model_id": ENGLISH, "dtype": "bfloat16"}, "DTYPE=bfloat16.*float32 only"),
        (NO_GPU, {"model_id": ENGLISH, "quantize": "int8"}, "QUANTIZE=int8.*no 8-bit layers"),
        (NO_GPU, {"model_id": ENGLISH, "cpu_threads": 2}, "CPU_THREADS=2"),
        # It is what an installation without torch can run; a model that MODEL_ID names is never replaced.
        (SLIM, {"model_id": "demo"}, "and set MODEL_ID=moonshine-tiny-en"),
        (_embedded(NO_GPU), {"model_id": "o/model"}, "o/model: the packages of Qwen3-ASR"),
        (SLIM, {}, r"'\.\[cpu\]', or '\.\[demo\]'"),
    ],
)
def test_what_cannot_run_refuses(machine, values, words):
    with pytest.raises(plan.PlanError, match=f"(?s){words}"):
        planned(machine, **values)


def test_what_concerns_one_model_is_not_asked_of_the_others():
    """Each has its own revision; the English model runs on the CPU also where the default runs on a GPU."""
    values = {"model_id": f"o/a@v1,{ENGLISH},o/b@v2", "device": "cuda"}
    resolved = planned(GPU, **values, dtype="bfloat16")
    english, other = resolved.others
    assert (english.device, english.dtype, other.device, other.dtype) == ("cpu", "float32", "cuda", "bfloat16")
    assert (resolved.model_revision, other.model_revision) == ("v1", "v2")
    assert (resolved.model_id, other.model_id) == ("o/a", "o/b")


@pytest.mark.parametrize(("machine", "extra"), [(NO_GPU, "cpu"), (GPU, "gpu")])
def test_auto_takes_the_embedded_model_without_the_packages_of_qwen(machine, extra):
    """The plan says how to install Qwen3-ASR, which is preferred where both are installed."""
    resolved = planned(_embedded(machine))
    assert resolved.model_id == resolved.value("model") == ENGLISH
    assert f"pip install '.[{extra}]'" in resolved.reason("model")
    both = replace(NO_GPU, packages=frozenset({"openvino", "moonshine-voice"}))
    assert planned(both).model_id == "Qwen/Qwen3-ASR-0.6B"
