"""The plan as a table."""

import pytest

from asr_server.core import settings
from asr_server.engine import plan
from asr_server.engine.capabilities import Capabilities

NO_GPU = Capabilities(gpu=False, torch_cuda=False)
GPU = Capabilities(gpu=True, torch_cuda=True)


def _settings(**values):
    return settings.load(_env_file=None, **values)


@pytest.mark.parametrize(
    ("device", "facts", "expected"),
    [
        ("auto", NO_GPU, "cpu"),
        ("auto", GPU, "cuda"),
        ("auto", Capabilities(gpu=True, torch_cuda=False), "cpu"),
        ("cpu", GPU, "cpu"),
        ("cuda:1", GPU, "cuda:1"),
    ],
)
def test_the_device_follows_setting_and_machine(device, facts, expected):
    """`auto` takes a GPU only when both the driver and the torch build have one."""
    resolved = plan.resolve(_settings(device=device), facts)
    assert resolved.device == expected
    assert resolved.max_batch == (32 if expected.startswith("cuda") else 8)


def test_what_cannot_work_refuses_and_names_every_conflict():
    """One error lists all of them, each with a way out."""
    with pytest.raises(plan.PlanError) as refusal:
        plan.resolve(_settings(device="cuda", quantize="int8", use_vllm=True), NO_GPU)
    text = str(refusal.value)
    assert all(word in text for word in ("DEVICE=cuda", "QUANTIZE", "USE_VLLM", "driver", "CPU build"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("dual_model", True),
        ("use_speculative", True),
        ("quantize", "fp8"),
        ("onnx_encoder_path", "x.onnx"),
        ("trt_encoder_path", "x.engine"),
        ("use_vllm", True),
        ("use_cuda_graphs", True),
        ("use_causal_encoder", True),
        ("numa_node", 1),
        ("use_granian", True),
    ],
)
def test_no_absent_option_is_silently_ignored(name, value):
    """Every option of the product that is not here yet stops the start."""
    with pytest.raises(plan.PlanError, match=name.upper()):
        plan.resolve(_settings(**{name: value}), GPU)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, "Qwen/Qwen3-ForcedAligner-0.6B"),
        ({"model_id": "demo"}, "demo"),
        ({"model_id": "demo", "forced_aligner_id": "/models/aligner"}, "/models/aligner"),
        ({"forced_aligner_id": "demo"}, "demo"),
    ],
)
def test_the_demonstration_brings_its_aligner_unless_one_is_named(values, expected):
    """FORCED_ALIGNER_ID is what counts where it is set; the plan says which aligner it is and why."""
    resolved = plan.resolve(_settings(**values), NO_GPU)
    (option,) = [o for o in resolved.options if o.name == "aligner"]
    assert resolved.aligner_id == option.value == expected
    assert option.active
    assert ("MODEL_ID" in option.reason) == (values == {"model_id": "demo"})


def test_every_option_is_in_the_plan_with_a_reason():
    """The plan says of each option whether it is active, and why not."""
    options = plan.resolve(_settings(), NO_GPU).options
    assert {"device", "dtype", "batching", "attention", "use_vllm", "quantize"} <= {o.name for o in options}
    assert all(o.reason for o in options)
    assert all(o.active or not o.value for o in options)


@pytest.mark.parametrize("gateway", [True, False])
def test_the_gateway_is_an_option_like_any_other(gateway):
    """It is in the plan, on or off, with the reason."""
    (line,) = (o for o in plan.resolve(_settings(gateway_mode=gateway), NO_GPU).options if o.name == "gateway_mode")
    assert line.active is gateway
    assert line.reason


def test_the_english_model_runs_on_the_cpu_and_aligns_with_its_own_weights():
    """Also where there is a GPU; another aligner that is named is taken, and none without a name."""
    resolved = plan.resolve(_settings(model_id="moonshine-tiny-en"), GPU)
    assert (resolved.engine, resolved.device, resolved.dtype) == ("moonshine", "cpu", "float32")
    assert (resolved.aligner_id, resolved.traits.aligns) == ("moonshine-tiny-en", True)
    assert resolved.traits.languages == ("English",)
    named = plan.resolve(_settings(model_id="moonshine-tiny-en", forced_aligner_id="demo"), NO_GPU)
    assert (named.aligner_id, named.traits.aligns) == ("demo", True)


def test_the_only_numa_node_needs_no_pinning():
    """Settings that name it, as another server's do, start here; those that would have to pin do not."""
    one, two = (Capabilities(gpu=False, torch_cuda=False, numa_nodes=count) for count in (1, 2))
    options = plan.resolve(_settings(model_id="demo", numa_node=0), one).options
    (option,) = (one for one in options if one.name == "numa_node")
    assert (option.active, "nothing to pin" in option.reason) == (False, True)
    for node, machine in ((1, one), (0, two)):
        with pytest.raises(plan.PlanError, match="NUMA_NODE is not available"):
            plan.resolve(_settings(model_id="demo", numa_node=node), machine)


def test_an_installation_without_torch_says_what_to_install():
    """The English model runs on it."""
    slim = Capabilities(gpu=False, torch_cuda=False, qwen=False)
    with pytest.raises(plan.PlanError, match="Qwen3-ASR are not installed: run `make serve`"):
        plan.resolve(_settings(model_id="demo"), slim)
    assert plan.resolve(_settings(model_id="moonshine-tiny-en"), slim).engine == "moonshine"


def test_what_the_english_model_cannot_do_refuses():
    """A GPU, and any other number format."""
    with pytest.raises(plan.PlanError) as refusal:
        plan.resolve(_settings(model_id="moonshine-tiny-en", device="cuda", dtype="bfloat16"), GPU)
    assert all(word in str(refusal.value) for word in ("DEVICE=cuda", "DTYPE=bfloat16", "CPU only", "float32 only"))
