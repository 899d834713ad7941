"""Plans with the English model."""

from dataclasses import replace

import pytest

from asr_server import feature_list
from asr_server.core import settings
from asr_server.engine import plan
from asr_server.engine.capabilities import Capabilities

NO_GPU = Capabilities(gpu=False, torch_cuda=False)
GPU = Capabilities(gpu=True, torch_cuda=True)


def _resolved(machine, **values):
    return feature_list.resolve(settings.load(_env_file=None, **values), machine)


def test_the_english_model_runs_on_the_cpu_and_aligns_with_its_own_weights():
    """The CPU is used also where there is a GPU; another aligner that is named is taken, and none without a name."""
    resolved = _resolved(GPU, model_id="moonshine-tiny-en")
    assert (resolved.engine, resolved.device, resolved.dtype) == ("moonshine", "cpu", "float32")
    assert (resolved.aligner_id, resolved.traits.aligns) == ("moonshine-tiny-en", True)
    assert resolved.traits.languages == ("English",)
    named = _resolved(NO_GPU, model_id="moonshine-tiny-en", forced_aligner_id="demo")
    assert (named.aligner_id, named.traits.aligns) == ("demo", True)


def test_what_the_english_model_cannot_do_refuses():
    """A GPU, and any other number format."""
    with pytest.raises(plan.PlanError) as refusal:
        _resolved(GPU, model_id="moonshine-tiny-en", device="cuda", dtype="bfloat16")
    assert all(word in str(refusal.value) for word in ("DEVICE=cuda", "DTYPE=bfloat16", "CPU only", "float32 only"))


def test_what_concerns_one_model_is_not_asked_of_the_others():
    """A revision is MODEL_ID's; the English model runs on the CPU also where the default runs on a GPU."""
    values = {"model_id": "o/a@v1", "models": "moonshine-tiny-en,o/b@v2", "device": "cuda"}
    resolved = _resolved(GPU, **values, dtype="bfloat16")
    english, other = resolved.others
    assert (english.device, english.dtype, other.device, other.dtype) == ("cpu", "float32", "cuda", "bfloat16")
    assert (resolved.model_revision, other.model_revision) == ("v1", "v2")
    assert (resolved.model_id, other.model_id) == ("o/a", "o/b")


def test_it_is_what_an_installation_without_torch_can_run():
    """The error for a Qwen3-ASR model names it."""
    slim = replace(NO_GPU, qwen=False)
    with pytest.raises(plan.PlanError, match="and set MODEL_ID=moonshine-tiny-en"):
        _resolved(slim, model_id="demo")
    assert _resolved(slim, model_id="moonshine-tiny-en").engine == "moonshine"


def test_it_has_no_8_bit_layers_and_its_libraries_choose_their_threads():
    """A request for either is refused."""
    with pytest.raises(plan.PlanError, match=r"QUANTIZE=int8.*no 8-bit layers[^|]*CPU_THREADS=2"):
        _resolved(NO_GPU, model_id="moonshine-tiny-en", quantize="int8", cpu_threads=2)
    assert "no 8-bit layers" in _resolved(NO_GPU, model_id="moonshine-tiny-en").reason("quantize")


@pytest.mark.parametrize(("machine", "extra"), [(NO_GPU, "cpu"), (GPU, "gpu")])
def test_auto_takes_the_embedded_model_without_the_packages_of_qwen(machine, extra):
    """The plan says how to install Qwen3-ASR. A model that MODEL_ID names is never replaced."""
    embedded = replace(machine, qwen=False, packages=frozenset({"moonshine-voice"}))
    resolved = _resolved(embedded)
    assert resolved.model_id == resolved.value("model") == "moonshine-tiny-en"
    assert f"pip install '.[{extra}]'" in resolved.reason("model")
    with pytest.raises(plan.PlanError, match="o/model: the packages of Qwen3-ASR"):
        _resolved(embedded, model_id="o/model")


def test_auto_without_any_model_says_what_to_install():
    """The error names both extras."""
    with pytest.raises(plan.PlanError, match=r"'\.\[cpu\]', or '\.\[demo\]'"):
        _resolved(replace(NO_GPU, qwen=False))


def test_auto_prefers_qwen_to_the_embedded_model():
    """Where both are installed."""
    both = replace(NO_GPU, packages=frozenset({"openvino", "moonshine-voice"}))
    assert _resolved(both).model_id == "Qwen/Qwen3-ASR-0.6B"
