"""The plan as a table."""

import sys
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
WITH_OPENVINO = replace(NO_GPU, packages=frozenset(("openvino",)))
XEON = replace(WITH_OPENVINO, cpu_flags=frozenset(("avx2", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8")))
LAPTOP = replace(WITH_OPENVINO, cpu_flags=frozenset(("avx2", "avx_vnni")))


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
    assert resolved.max_batch == (64 if expected.startswith("cuda") else 8)


def test_what_cannot_work_refuses_and_names_every_conflict():
    """One error lists all conflicts, each with a way out."""
    with pytest.raises(plan.PlanError) as refusal:
        plan.resolve(_settings(device="cuda", quantize="fp8", dual_model=True), NO_GPU)
    text = str(refusal.value)
    assert all(word in text for word in ("DEVICE=cuda", "QUANTIZE", "DUAL_MODEL", "driver", "CPU build"))


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
    """Steps are recorded on other cards where it is asked for."""
    resolved = plan.resolve(_settings(use_cuda_graphs=wanted), machine)
    assert resolved.is_active("use_cuda_graphs") is _option(resolved, "use_cuda_graphs").active is recorded


def test_nothing_is_recorded_on_a_cpu():
    """A plan that asks for it is refused."""
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
    assert {"device", "dtype", "batching", "attention", "models", "quantize"} <= {o.name for o in options}
    assert all(o.reason for o in options)
    assert all(o.active or not o.value for o in options)


def test_fusing_needs_what_compiles():
    """A C++ compiler, and triton on a GPU; the engine must compute in torch."""
    equipped = replace(NO_GPU, compiler="/usr/bin/g++")
    triton = replace(GPU, packages=frozenset(("triton",)))
    assert plan.resolve(_settings(use_torch_compile=True), equipped).is_active("use_torch_compile")
    assert not plan.resolve(_settings(), equipped).is_active("use_torch_compile")
    both = replace(triton, compiler=equipped.compiler)
    assert plan.resolve(_settings(use_torch_compile=True), both).is_active("use_torch_compile")
    for machine, words in ((NO_GPU, "C\\+\\+ compiler"), (triton, "C\\+\\+ compiler"), (GPU, "triton")):
        with pytest.raises(plan.PlanError, match=words):
            plan.resolve(_settings(use_torch_compile=True), machine)
    with pytest.raises(plan.PlanError, match="does not run in torch"):
        plan.resolve(_settings(use_torch_compile=True, model_id="fake"), equipped)


def test_the_servers_kernels_need_a_gpu_and_triton():
    """They and torch.compile fuse the same operations; the engine must compute in torch."""
    equipped = replace(GPU, packages=frozenset(("triton",)), compiler="c++")
    amd = replace(equipped, gpus=replace(equipped.gpus, driver=Driver.AMD, build=Build.ROCM))
    for machine, wanted, used in (
        *((equipped, wanted, bool(wanted)) for wanted in ("auto", True, False)),
        *((machine, "auto", False) for machine in (NO_GPU, GPU, amd)),
        (amd, True, True),
    ):
        option = _option(plan.resolve(_settings(use_fused_kernels=wanted), machine), "use_fused_kernels")
        assert option.active is used
        assert option.reason
    compiled = plan.resolve(_settings(use_torch_compile=True), equipped)
    assert "USE_TORCH_COMPILE" in _option(compiled, "use_fused_kernels").reason
    for machine, values, words in (
        (NO_GPU, {}, "for GPUs"),
        (GPU, {}, "triton"),
        (equipped, {"use_torch_compile": True}, "same operations"),
        (equipped, {"model_id": "fake"}, "does not run in torch"),
    ):
        with pytest.raises(plan.PlanError, match=words):
            plan.resolve(_settings(use_fused_kernels=True, **values), machine)


def test_a_cpu_computes_in_openvino_where_it_is_installed():
    """Then 8 bits need no instructions of the processor, and nothing is left for torch.compile; a GPU has torch."""
    equipped = replace(NO_GPU, packages=frozenset(("openvino",)), compiler="/usr/bin/g++")
    resolved = plan.resolve(_settings(), equipped)
    assert (resolved.runtime, resolved.quantize) == ("openvino", "int8")
    in_torch = plan.resolve(_settings(runtime="torch"), equipped)
    assert (in_torch.runtime, in_torch.quantize) == ("torch", "")
    assert plan.resolve(_settings(), NO_GPU).runtime == plan.resolve(_settings(), GPU).runtime == "torch"
    assert plan.resolve(_settings(model_id="demo"), equipped).quantize == ""
    assert plan.resolve(_settings(dtype="bfloat16"), equipped).runtime == "torch"
    bfloat16 = replace(equipped, cpu_flags=frozenset(("avx512_bf16",)))
    assert plan.resolve(_settings(), bfloat16).runtime == "openvino"
    refused = ({}, NO_GPU), ({"device": "cuda"}, GPU), ({"use_torch_compile": True}, equipped)
    for values, machine in (*refused, ({"dtype": "float16"}, bfloat16)):
        with pytest.raises(plan.PlanError, match="RUNTIME="):
            plan.resolve(_settings(runtime="openvino", **values), machine)


def _card(name, **values):
    gpus = Gpus(driver=Driver.NVIDIA, build=Build.CUDA, cards=(name,))
    return replace(GPU, gpus=gpus, packages=frozenset(("bitsandbytes", "torchao")), **values)


@pytest.mark.parametrize(("wanted", "card"), [("int8", "Tesla T4"), ("fp8", "NVIDIA L4"), ("fp8", "an unknown card")])
def test_eight_bits_on_a_gpu_are_chosen_by_name(wanted, card):
    """Eight bits are chosen where the card has units for them, or is not known before the model is loaded; steps are to
    be recorded as with 16."""
    resolved = plan.resolve(_settings(device="cuda", quantize=wanted), _card(card))
    assert resolved.quantize == wanted
    assert resolved.is_active("use_cuda_graphs")
    assert plan.resolve(_settings(device="cuda"), _card(card)).quantize == ""


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
    """Each is chosen only where the processor has its instructions, and 8 bits not on a GPU; the plan says what
    follows."""
    resolved = plan.resolve(_settings(), machine)
    assert (resolved.dtype, resolved.quantize) == (dtype, "int8" * int8)
    assert (_option(resolved, "quantize").active, _option(resolved, "quantize").value) == (int8, "int8" * int8)
    assert _option(resolved, "exact_batching").active is exact
    assert exact or "near ties" in _option(resolved, "exact_batching").reason


def test_four_bits_are_for_cpus_in_openvino():
    """Any processor can, and nothing chooses them by itself."""
    here = replace(NO_GPU, packages=frozenset(("openvino",)))
    assert plan.resolve(_settings(quantize="int4"), here).quantize == "int4"
    for machine, values in ((here, {"runtime": "torch"}), (GPU, {"device": "cuda"})):
        with pytest.raises(plan.PlanError, match=r"QUANTIZE=int4 is not available here: .*(OpenVINO|CPUs)"):
            plan.resolve(_settings(quantize="int4", **values), machine)


def test_torch_is_asked_for_where_it_is_needed_and_not_installed():
    """On a CPU nothing else needs it; the line says what does."""
    lean = replace(NO_GPU, packages=frozenset(("openvino",)), torch=False)
    assert plan.resolve(_settings(), lean).runtime == "openvino"
    for values, word in (({"runtime": "torch"}, "RUNTIME=torch"), ({"dtype": "float16"}, "float16")):
        with pytest.raises(plan.PlanError, match=f"torch is needed .*{word}.* not installed"):
            plan.resolve(_settings(**values), lean)
    with pytest.raises(plan.PlanError, match="torch is not installed"):
        plan.resolve(_settings(device="cuda"), replace(lean, gpu=True))


def test_number_formats_that_are_set_are_taken():
    """The demonstration model takes them too, which has neither by itself since it would gain nothing."""
    values = {"model_id": "demo", "dtype": "bfloat16", "quantize": "int8"}
    resolved = plan.resolve(_settings(**values), XEON)
    assert (resolved.dtype, resolved.quantize) == ("bfloat16", "int8")
    resolved = plan.resolve(_settings(model_id="demo"), XEON)
    assert (resolved.dtype, resolved.quantize) == ("float32", "")
    resolved = plan.resolve(_settings(quantize="none", dtype="float32"), XEON)
    assert (resolved.dtype, resolved.quantize) == ("float32", "")


def test_eight_bits_are_refused_in_torch_on_a_cpu():
    """A request for them is not ignored; `auto` is none there, with the same reason."""
    with pytest.raises(plan.PlanError, match=r"QUANTIZE=int8.*OpenVINO"):
        plan.resolve(_settings(quantize="int8", runtime="torch"), XEON)
    assert "OpenVINO" in _option(plan.resolve(_settings(runtime="torch"), XEON), "quantize").reason


@pytest.mark.parametrize(
    ("values", "machine", "expected"),
    [
        ({}, XEON, "Qwen/Qwen3-ASR-0.6B"),
        ({}, GPU, "Qwen/Qwen3-ASR-1.7B"),
        ({}, replace(GPU, gpus=Gpus(memory_mb=(24_564, 4_096))), "Qwen/Qwen3-ASR-0.6B"),
        ({}, replace(GPU, gpus=Gpus(memory_mb=(8_188,))), "Qwen/Qwen3-ASR-1.7B"),
        ({"device": "cpu"}, GPU, "Qwen/Qwen3-ASR-0.6B"),
        ({"model_id": "o/model@main"}, XEON, "o/model"),
    ],
)
def test_the_model_that_is_not_named_fits_the_device(values, machine, expected):
    """The larger one on a GPU, if the smallest card has the memory."""
    resolved = plan.resolve(_settings(**values), machine)
    assert resolved.model_id == _option(resolved, "model").value == expected


def test_a_revision_is_part_of_the_id_of_a_model_of_the_hub(tmp_path):
    """The aligner has its own revision. A directory's name may contain `@`."""
    resolved = plan.resolve(_settings(model_id="o/model@main", forced_aligner_id="o/aligner@v3"), XEON)
    assert (resolved.model_id, resolved.model_revision) == ("o/model", "main")
    assert (resolved.aligner_id, resolved.aligner_revision) == ("o/aligner", "v3")
    resolved = plan.resolve(_settings(model_id=f"{tmp_path}/a@b"), XEON)
    assert (resolved.model_id, resolved.model_revision) == (f"{tmp_path}/a@b", "")


def test_threads_are_the_machines_unless_they_are_set():
    """The plan has the fact that the number follows from; an engine that cannot be told refuses one."""
    machine = replace(XEON, cpu=CpuShare(3, "a quota of 3.5"))
    resolved = plan.resolve(_settings(), machine)
    assert (resolved.cpu_threads, _option(resolved, "cpu_threads").reason) == (3, "a quota of 3.5")
    assert plan.resolve(_settings(cpu_threads=2), machine).cpu_threads == 2
    with pytest.raises(plan.PlanError, match="CPU_THREADS=2"):
        plan.resolve(_settings(cpu_threads=2, model_id="fake"), machine)


def test_an_installation_without_torch_says_what_to_install():
    """The error has the commands."""
    slim = Capabilities(gpu=False, torch_cuda=False, qwen=False)
    with pytest.raises(plan.PlanError, match=r"Qwen3-ASR are not installed: pip install '\.\[cpu\]'"):
        plan.resolve(_settings(model_id="demo"), slim)


@pytest.mark.parametrize("values", [{"model_id": "fake"}, {"models": "demo,fake-fast"}, {"speech": "fake"}])
def test_scripted_engines_need_the_sources(values, monkeypatch):
    """The wheel does not have them, and the start is refused there."""
    monkeypatch.setitem(sys.modules, "asr_server_fake", None)
    with pytest.raises(plan.PlanError, match="the package asr_server_fake is in the sources only"):
        plan.resolve(_settings(**values), NO_GPU)


def test_shared_jobs_need_their_package():
    """The start is refused without it."""
    with pytest.raises(plan.PlanError, match="JOBS_DATABASE_URL: asyncpg is not installed"):
        plan.resolve(_settings(jobs_database_url="postgresql://db/asr"), NO_GPU)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"models": "demo, fake"}, ["demo", "fake"]),
        ({"model_id": "fake", "models": "demo,fake,demo"}, ["fake", "demo"]),
        ({"model_id": "demo", "fast_model_id": "fake"}, ["demo"]),
        ({"model_id": "demo", "fast_model_id": "fake", "dual_model": True}, ["demo", "fake"]),
        ({"models": "o/a,o/b", "fast_model_id": "o/b", "use_speculative": True}, ["o/a", "o/b"]),
    ],
)
def test_models_are_resident_once_and_the_first_is_the_default(values, expected):
    """MODEL_ID, or else the first of MODELS; the fast model where an option uses it. All share the memory."""
    resolved = plan.resolve(_settings(**values), NO_GPU)
    assert [resolved.model_id, *(other.model_id for other in resolved.others)] == expected
    assert {resolved.shares, *(other.shares for other in resolved.others)} == {len(expected)}
    line = _option(resolved, "models")
    assert (line.active, line.value) == (len(expected) > 1, ", ".join(expected) * (len(expected) > 1))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"dual_model": True}, "DUAL_MODEL needs FAST_MODEL_ID"),
        ({"use_speculative": True}, "USE_SPECULATIVE needs FAST_MODEL_ID"),
        ({"model_id": "demo", "fast_model_id": "demo", "dual_model": True}, "FAST_MODEL_ID is MODEL_ID=demo"),
        ({"models": "demo,auto"}, "`auto` is only for MODEL_ID"),
        ({"models": ",".join("abcdefghi")}, "at most 8 models"),
    ],
)
def test_models_that_contradict_each_other_refuse(values, words):
    """The error has the settings at fault."""
    with pytest.raises(plan.PlanError, match=words):
        plan.resolve(_settings(**values), NO_GPU)
