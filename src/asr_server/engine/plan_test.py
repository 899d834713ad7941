"""The plan as a table."""

from dataclasses import replace

import pytest

from asr_server.core import settings
from asr_server.engine import plan
from asr_server.engine.capabilities import Capabilities
from asr_server.engine.cpu import CpuShare
from asr_server.engine.gpu import Build, Driver, Gpus

NO_GPU = Capabilities(gpu=False, torch_cuda=False)
GPU = Capabilities(gpu=True, torch_cuda=True)
ROCM = replace(GPU, gpus=Gpus(driver=Driver.AMD, build=Build.ROCM))
XEON = replace(NO_GPU, cpu_flags=frozenset(("avx2", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8")))
LAPTOP = replace(NO_GPU, cpu_flags=frozenset(("avx2", "avx_vnni")))


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
        plan.resolve(_settings(device="cuda", quantize="fp8", use_vllm=True), NO_GPU)
    text = str(refusal.value)
    assert all(word in text for word in ("DEVICE=cuda", "QUANTIZE", "USE_VLLM", "driver", "CPU build"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("dual_model", True),
        ("use_speculative", True),
        ("quantize", "fp8"),
        ("use_vllm", True),
        ("numa_node", 1),
        ("use_granian", True),
    ],
)
def test_no_absent_option_is_silently_ignored(name, value):
    """Every option of the product that is not here yet stops the start."""
    with pytest.raises(plan.PlanError, match=name.upper()):
        plan.resolve(_settings(**{name: value}), GPU)


@pytest.mark.parametrize(
    ("wanted", "machine", "recorded"),
    [
        ("auto", GPU, True),
        (True, GPU, True),
        (False, GPU, False),
        ("auto", NO_GPU, False),
        ("auto", ROCM, False),
        (True, ROCM, True),
    ],
)
def test_steps_are_recorded_on_nvidias_gpus(wanted, machine, recorded):
    """Elsewhere where it is asked for."""
    resolved = plan.resolve(_settings(use_cuda_graphs=wanted), machine)
    assert resolved.cuda_graphs is _option(resolved, "use_cuda_graphs").active is recorded


def test_nothing_is_recorded_on_a_cpu():
    """Who asks for it is told."""
    with pytest.raises(plan.PlanError, match="USE_CUDA_GRAPHS"):
        plan.resolve(_settings(use_cuda_graphs=True), NO_GPU)


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


def _card(name, **values):
    gpus = Gpus(driver=Driver.NVIDIA, build=Build.CUDA, cards=(name,))
    return replace(GPU, gpus=gpus, packages=frozenset(("bitsandbytes", "torchao")), **values)


@pytest.mark.parametrize(("wanted", "card"), [("int8", "Tesla T4"), ("fp8", "NVIDIA L4"), ("fp8", "an unknown card")])
def test_eight_bits_on_a_gpu_are_chosen_by_name(wanted, card):
    """Where the card has units for them, or is not known before the model is loaded; steps are not recorded then."""
    resolved = plan.resolve(_settings(device="cuda", quantize=wanted), _card(card))
    assert resolved.quantize == wanted
    assert not resolved.cuda_graphs
    assert plan.resolve(_settings(device="cuda"), _card(card)).quantize == ""
    assert plan.resolve(_settings(device="cuda", quantize=wanted, use_cuda_graphs=True), _card(card)).cuda_graphs


@pytest.mark.parametrize(
    ("wanted", "machine", "words"),
    [
        ("fp8", _card("NVIDIA A100-SXM4-80GB"), "A100.* capability 8.0, and fp8 needs 8.9"),
        ("int8", _card("Tesla V100-SXM2-16GB"), "V100.* capability 7.0, and int8 needs 7.5"),
        ("fp8", GPU, "torchao is not installed"),
        ("fp8", XEON, "processors do not multiply in it"),
        ("int8", replace(ROCM, packages=frozenset(("bitsandbytes",))), "not tried on AMD"),
    ],
)
def test_eight_bits_are_refused_with_the_cards_name(wanted, machine, words):
    """The card, the package, or the processor lacks something."""
    with pytest.raises(plan.PlanError, match=words):
        plan.resolve(_settings(device="cuda" if machine.gpu else "cpu", quantize=wanted), machine)


def _option(resolved, name):
    (found,) = (option for option in resolved.options if option.name == name)
    return found


@pytest.mark.parametrize(
    ("machine", "dtype", "int8", "exact"),
    [
        (NO_GPU, "float32", False, True),
        (LAPTOP, "float32", True, False),
        (XEON, "bfloat16", True, False),
        (replace(GPU, cpu_flags=XEON.cpu_flags), "auto", False, False),
    ],
)
def test_number_formats_follow_the_processor(machine, dtype, int8, exact):
    """Each only where the processor has its instructions, and 8 bits not on a GPU; the plan says what follows."""
    resolved = plan.resolve(_settings(), machine)
    assert (resolved.dtype, resolved.quantize) == (dtype, "int8" * int8)
    assert (_option(resolved, "quantize").active, _option(resolved, "quantize").value) == (int8, "int8" * int8)
    assert _option(resolved, "exact_batching").active is exact
    assert exact or "near ties" in _option(resolved, "exact_batching").reason


def test_number_formats_that_are_set_are_taken():
    """Also for the demonstration model, which has neither by itself since it would gain nothing."""
    values = {"model_id": "demo", "dtype": "bfloat16", "quantize": "int8"}
    resolved = plan.resolve(_settings(**values), XEON)
    assert (resolved.dtype, resolved.quantize) == ("bfloat16", "int8")
    resolved = plan.resolve(_settings(model_id="demo"), XEON)
    assert (resolved.dtype, resolved.quantize) == ("float32", "")
    resolved = plan.resolve(_settings(quantize="none", dtype="float32"), XEON)
    assert (resolved.dtype, resolved.quantize) == ("float32", "")


@pytest.mark.parametrize(
    ("values", "machine", "word"),
    [
        ({}, NO_GPU, "none of the instructions"),
        ({"model_id": "moonshine-tiny-en"}, XEON, "no 8-bit layers"),
    ],
)
def test_eight_bits_are_refused_where_there_are_none(values, machine, word):
    """A request for them is not ignored; `auto` is none there, with the same reason."""
    with pytest.raises(plan.PlanError, match=f"QUANTIZE=int8.*{word}"):
        plan.resolve(_settings(quantize="int8", **values), machine)
    assert word in _option(plan.resolve(_settings(**values), machine), "quantize").reason


@pytest.mark.parametrize(
    ("values", "machine", "expected"),
    [
        ({}, XEON, "Qwen/Qwen3-ASR-0.6B"),
        ({}, GPU, "Qwen/Qwen3-ASR-1.7B"),
        ({"device": "cpu"}, GPU, "Qwen/Qwen3-ASR-0.6B"),
        ({"model_revision": "main"}, XEON, "Qwen/Qwen3-ASR-0.6B"),
        ({"model_id": "o/model"}, XEON, "o/model"),
    ],
)
def test_the_model_that_is_not_named_fits_the_device(values, machine, expected):
    """The larger one on a GPU; the plan names it, and the doctor looks for the same one."""
    resolved = plan.resolve(_settings(**values), machine)
    assert resolved.model_id == _option(resolved, "model").value == expected
    assert plan.chosen_model(_settings(**values), machine) == expected


def test_threads_are_the_machines_unless_they_are_set():
    """With the fact that the number follows from; an engine that cannot be told refuses one."""
    machine = replace(XEON, cpu=CpuShare(3, "a quota of 3.5"))
    resolved = plan.resolve(_settings(), machine)
    assert (resolved.cpu_threads, _option(resolved, "cpu_threads").reason) == (3, "a quota of 3.5")
    assert plan.resolve(_settings(cpu_threads=2), machine).cpu_threads == 2
    with pytest.raises(plan.PlanError, match="CPU_THREADS=2"):
        plan.resolve(_settings(cpu_threads=2, model_id="moonshine-tiny-en"), machine)


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


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "encoder"
    path.touch()
    return str(path)


@pytest.mark.parametrize(
    ("names", "values", "machine", "words"),
    [
        (("ONNX_ENCODER_PATH", "TRT_ENCODER_PATH"), {}, GPU, "exclude each other"),
        (("ONNX_ENCODER_PATH", "USE_CAUSAL_ENCODER"), {}, NO_GPU, "exclude each other"),
        (("TRT_ENCODER_PATH", "USE_CAUSAL_ENCODER"), {}, GPU, "exclude each other"),
        (("TRT_ENCODER_PATH",), {}, NO_GPU, "not run on an NVIDIA GPU and the package tensorrt is not installed"),
        (("TRT_ENCODER_PATH",), {}, GPU, "TRT_ENCODER_PATH: the package tensorrt is not installed"),
        (("TRT_ENCODER_PATH",), {}, replace(ROCM, packages=frozenset(["tensorrt"])), "not run on an NVIDIA GPU; unset"),
        (("ONNX_ENCODER_PATH",), {}, GPU, "onnxruntime-gpu in place of onnxruntime"),
        (("ONNX_ENCODER_PATH",), {"model_id": "moonshine-tiny-en"}, NO_GPU, "is for Qwen3-ASR"),
        (("USE_CAUSAL_ENCODER",), {"model_id": "fake"}, NO_GPU, "is for Qwen3-ASR"),
        (("USE_CAUSAL_ENCODER",), {"model_id": "demo"}, NO_GPU, "causal_left_tokens"),
    ],
)
def test_encoders_that_cannot_run_refuse(file, names, values, machine, words):
    """Each pair of them, and each where its library or its checkpoint is missing."""
    wanted = {name.lower(): True if name.startswith("USE") else file for name in names}
    with pytest.raises(plan.PlanError, match=words) as refusal:
        plan.resolve(_settings(**{"model_id": "o/model", **values, **wanted}), machine)
    assert all(name in str(refusal.value) for name in names)


@pytest.mark.parametrize("name", ["onnx_encoder_path", "trt_encoder_path"])
def test_an_encoder_file_that_is_missing_refuses(name):
    """At start, not with the first request."""
    machine = replace(GPU, packages=frozenset(["tensorrt", "onnxruntime-gpu"]))
    with pytest.raises(plan.PlanError, match=f"{name.upper()}=/nowhere/x: there is no such file"):
        plan.resolve(_settings(**{name: "/nowhere/x"}), machine)


@pytest.mark.parametrize(
    ("name", "machine"),
    [("onnx_encoder_path", XEON), ("onnx_encoder_path", GPU), ("trt_encoder_path", GPU), ("use_causal_encoder", XEON)],
)
def test_encoders_compose_with_8_bits_and_cuda_graphs(file, name, machine):
    """These are options of the language model, which none of the encoders touches."""
    machine = replace(machine, packages=frozenset(["tensorrt", "onnxruntime-gpu"]))
    value = True if name.startswith("use") else file
    resolved = plan.resolve(_settings(model_id="o/model", **{name: value}), machine)
    assert resolved.value(name) == (file if value is not True else "true")
    assert _option(resolved, "quantize").active is (machine.gpu is False)
    assert resolved.cuda_graphs is machine.gpu
