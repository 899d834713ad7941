"""Every pair of options: both are active, or the start is refused with the names of what excludes each other."""

from itertools import combinations

import pytest

from asr_server import feature_list
from asr_server.core import settings
from asr_server.engine import plan
from asr_server.engine.capabilities import OPTIONAL, Capabilities
from asr_server.engine.gpu import Build, Driver, Gpus

# The settings that switch each option on, by the option's name. "FILE" stands for a file that exists.
ON = {
    "quantize": {"quantize": "int8"},
    "use_cuda_graphs": {"use_cuda_graphs": True},
    "fuse": {"fuse": "kernels"},
    "encoder_path": {"encoder_path": "FILE"},
    "models": {"model_id": "o/large,o/b,moonshine-tiny-en"},
    "dual_model": {"dual_model": True, "fast_model_id": "o/small"},
    "use_speculative": {"use_speculative": True, "fast_model_id": "o/small"},
    "use_vllm": {"use_vllm": True},
    "engine": {"vllm_base_url": "http://127.0.0.1:1/v1"},
    "numa_node": {"numa_node": "0"},
    "use_granian": {"use_granian": True},
    "gateway_mode": {"gateway_mode": True},
    "engine_process": {"engine_process": True},
    "translation": {"openai_base_url": "http://127.0.0.1:1/v1", "translate_model": "any"},
    "speakers": {"speakers": "embedded"},
    "speech": {"speech": "espeak"},
    "speech_clone_model": {"speech_clone_model": "fake"},
}
# A model that runs elsewhere has none of what concerns a model here.
HERE = ("quantize", "use_cuda_graphs", "fuse", "encoder_path", "models", "dual_model", "use_speculative")
EXCLUSIVE = {frozenset((remote, name)) for remote in ("use_vllm", "engine") for name in HERE}
EXCLUSIVE.add(frozenset(("use_vllm", "engine")))

# The others have options that depend on the packages of this machine.
COMBINED = tuple(feature for feature in feature_list.FEATURES if feature.name not in ("turns", "rewriting"))
MACHINE = Capabilities(
    gpu=True,
    torch_cuda=True,
    gpus=Gpus(driver=Driver.NVIDIA, build=Build.CUDA, cards=("NVIDIA H100",)),
    packages=frozenset(OPTIONAL),
    compiler="/usr/bin/g++",
    vllm="/usr/bin/vllm",
)


def _resolved(names, file):
    chosen = {"model_id": "o/large", "speech": "espeak"}
    for name in names:
        chosen |= {key: str(file) if value == "FILE" else value for key, value in ON[name].items()}
    return feature_list.resolve(settings.load(_env_file=None, **chosen), MACHINE, COMBINED)


@pytest.mark.parametrize(("device", "active"), [("cuda", True), ("cpu", False)])
def test_with_a_gpu_the_engine_has_a_process_of_its_own(device, active):
    """Replicas in a cluster have one too, without further settings."""
    chosen = settings.load(_env_file=None, model_id="o/large", device=device)
    assert feature_list.resolve(chosen, MACHINE, COMBINED).is_active("engine_process") == active


@pytest.mark.parametrize("pair", list(combinations(ON, 2)), ids="+".join)
def test_every_pair_of_options_composes_or_is_refused_by_name(pair, tmp_path):
    """No option is dropped because of another, and none is refused alone."""
    file = tmp_path / "encoder"
    file.touch()
    if frozenset(pair) in EXCLUSIVE:
        with pytest.raises(plan.PlanError) as refusal:
            _resolved(pair, file)
        assert all(any(key.upper() in str(refusal.value) for key in ON[option]) for option in pair)
        return
    active = {option.name for option in _resolved(pair, file).options if option.active}
    assert active >= set(pair)
