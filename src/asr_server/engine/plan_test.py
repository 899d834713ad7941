"""The plan as tables: what is chosen on a machine, why, and what is refused."""

from dataclasses import replace

import pytest

from asr_server.engine import plan
from asr_server.engine.capabilities import Capabilities
from asr_server.engine.conftest import GPU, NO_GPU, planned
from asr_server.engine.cpu import CpuShare
from asr_server.engine.gpu import Build, Driver, Gpus

ROCM = replace(GPU, gpus=Gpus(driver=Driver.AMD, build=Build.ROCM))


def _with(machine, *packages, **values):
    return replace(machine, packages=frozenset(packages), **values)


WITH_OPENVINO = _with(NO_GPU, "openvino")
LEAN = replace(WITH_OPENVINO, torch=False)
COMPILING = replace(WITH_OPENVINO, compiler="/usr/bin/g++")
XEON = replace(WITH_OPENVINO, cpu_flags=frozenset(("avx2", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8")))
LAPTOP = replace(WITH_OPENVINO, cpu_flags=frozenset(("avx2", "avx_vnni")))
TRITON = _with(GPU, "triton")
EQUIPPED = replace(TRITON, compiler="c++")
AMD = _with(ROCM, "triton", compiler="c++")
SMALL, LARGE = "Qwen/Qwen3-ASR-0.6B", "Qwen/Qwen3-ASR-1.7B"


def _card(name):
    return _with(GPU, "bitsandbytes", "torchao", gpus=Gpus(driver=Driver.NVIDIA, build=Build.CUDA, cards=(name,)))


@pytest.mark.parametrize(
    ("machine", "values", "expected"),
    [
        # `auto` takes a GPU only when both the driver and the torch build have one.
        (NO_GPU, {}, {"device": "cpu", "max_batch": 8, "dtype": "float32", "quantize": "", "runtime": "torch"}),
        (GPU, {}, {"device": "cuda", "max_batch": 64, "runtime": "torch", "model_id": LARGE}),
        (Capabilities(gpu=True, torch_cuda=False), {}, {"device": "cpu"}),
        (GPU, {"device": "cpu"}, {"device": "cpu", "max_batch": 8, "model_id": SMALL}),
        (GPU, {"device": "cuda:1"}, {"device": "cuda:1", "aligner_id": "Qwen/Qwen3-ForcedAligner-0.6B"}),
        # The larger model on a GPU, if the smallest card has the memory.
        (replace(GPU, gpus=Gpus(memory_mb=(24_564, 4_096))), {}, {"model_id": SMALL}),
        (replace(GPU, gpus=Gpus(memory_mb=(8_188,))), {}, {"model_id": LARGE}),
        # Only its own name starts the scripted engine.
        (NO_GPU, {"model_id": "fake"}, {"engine": "fake", "device": "cpu", "aligner_id": "fake"}),
        (NO_GPU, {"model_id": "./fake"}, {"engine": "qwen"}),
        # The aligner has a revision of its own. A directory's name may contain `@`.
        (XEON, {"model_id": "o/model@main"}, {"model_id": "o/model", "model_revision": "main"}),
        (XEON, {"forced_aligner_id": "o/aligner@v3"}, {"aligner_id": "o/aligner", "aligner_revision": "v3"}),
        (XEON, {"model_id": "/a@b"}, {"model_id": "/a@b", "model_revision": ""}),
        # The demonstration brings its aligner, unless one is named.
        (NO_GPU, {"model_id": "demo"}, {"aligner_id": "demo"}),
        (NO_GPU, {"model_id": "demo", "forced_aligner_id": "/models/aligner"}, {"aligner_id": "/models/aligner"}),
        # A CPU computes in OpenVINO where it is installed, in 8 bits, whatever instructions the processor has.
        (COMPILING, {"runtime": "torch"}, {"runtime": "torch", "quantize": ""}),
        (COMPILING, {"dtype": "bfloat16"}, {"runtime": "torch"}),
        (LEAN, {}, {"runtime": "openvino"}),
        (LAPTOP, {}, {"runtime": "openvino", "dtype": "float32", "quantize": "int8", "model_id": SMALL}),
        (XEON, {}, {"runtime": "openvino", "dtype": "bfloat16", "quantize": "int8"}),
        (replace(GPU, cpu_flags=XEON.cpu_flags), {}, {"dtype": "auto", "quantize": ""}),
        # The demonstration model would gain nothing, and takes what is set.
        (XEON, {"model_id": "demo"}, {"dtype": "float32", "quantize": ""}),
        (XEON, {"model_id": "demo", "dtype": "bfloat16"}, {"dtype": "bfloat16"}),
        (XEON, {"model_id": "demo", "quantize": "int8"}, {"quantize": "int8"}),
        (XEON, {"quantize": "none", "dtype": "float32"}, {"dtype": "float32", "quantize": ""}),
        # Any processor can do with 4 bits, and nothing chooses them by itself.
        (WITH_OPENVINO, {"quantize": "int4"}, {"quantize": "int4"}),
        # On a GPU 8 bits are chosen by name: the card has units for them, or is not known before the load.
        (_card("Tesla T4"), {"device": "cuda"}, {"quantize": ""}),
        (_card("Tesla T4"), {"device": "cuda", "quantize": "int8"}, {"quantize": "int8"}),
        (_card("an unknown card"), {"device": "cuda", "quantize": "fp8"}, {"quantize": "fp8"}),
        # Threads are the machine's unless they are set.
        (replace(XEON, cpu=CpuShare(3, "a quota of 3.5")), {}, {"cpu_threads": 3}),
        (replace(XEON, cpu=CpuShare(3, "a quota of 3.5")), {"cpu_threads": 2}, {"cpu_threads": 2}),
    ],
)
def test_what_is_chosen(machine, values, expected):
    """Each choice follows from settings and machine; every option of the plan says why it is as it is."""
    resolved = planned(machine, **values)
    assert {name: getattr(resolved, name) for name in expected} == expected
    assert resolved.aligner_id == resolved.value("aligner")
    if resolved.engine == "qwen":
        assert (resolved.model_id, resolved.quantize) == (resolved.value("model"), resolved.value("quantize"))
        assert {"device", "dtype", "batching", "attention", "models"} <= {option.name for option in resolved.options}
    assert all(option.reason for option in resolved.options)
    assert all(option.active or not option.value for option in resolved.options)


@pytest.mark.parametrize(
    ("name", "machine", "values", "active", "words"),
    [
        ("aligner", NO_GPU, {"model_id": "demo"}, True, "MODEL_ID"),
        ("cpu_threads", replace(XEON, cpu=CpuShare(3, "a quota of 3.5")), {}, True, "a quota of 3.5"),
        ("exact_batching", NO_GPU, {}, True, ""),
        ("exact_batching", LAPTOP, {}, False, "near ties"),
        ("exact_batching", GPU, {}, False, "near ties"),
        ("quantize", XEON, {"runtime": "torch"}, False, "OpenVINO"),
        # Steps are recorded on NVIDIA's GPUs, on other cards where it is asked for, with 8 bits as with 16.
        ("use_cuda_graphs", _card("NVIDIA L4"), {"quantize": "fp8"}, True, ""),
        ("use_cuda_graphs", GPU, {"use_cuda_graphs": False}, False, "as set"),
        ("use_cuda_graphs", ROCM, {}, False, "not tried on AMD"),
        ("use_cuda_graphs", ROCM, {"use_cuda_graphs": True}, True, ""),
        ("fuse", COMPILING, {"runtime": "torch"}, False, "longer with torch.compile"),
        ("fuse", COMPILING, {"runtime": "torch", "fuse": "compile"}, True, "as set"),
        ("fuse", EQUIPPED, {}, True, "compared with torch's"),
        ("fuse", EQUIPPED, {"fuse": "none"}, False, "as set"),
        ("fuse", GPU, {}, False, "triton"),
        ("fuse", AMD, {}, False, "AMD"),
        ("fuse", AMD, {"fuse": "kernels"}, True, "compared with torch's"),
    ],
)
def test_why_an_option_is_as_it_is(name, machine, values, active, words):
    resolved = planned(machine, **values)
    assert resolved.is_active(name) is active
    assert words in resolved.reason(name)
    assert resolved.reason(name)


@pytest.mark.parametrize(
    ("machine", "values", "words"),
    [
        (NO_GPU, {"use_cuda_graphs": True}, "USE_CUDA_GRAPHS"),
        (_card("NVIDIA A100-SXM4-80GB"), {"quantize": "fp8"}, "A100.* capability 8.0, and fp8 needs 8.9"),
        (_card("Tesla V100-SXM2-16GB"), {"quantize": "int8"}, "V100.* capability 7.0, and int8 needs 7.5"),
        (GPU, {"quantize": "fp8"}, "torchao is not installed"),
        (XEON, {"quantize": "fp8"}, "processors do not multiply in it"),
        (_with(ROCM, "bitsandbytes"), {"quantize": "int8"}, "not tried on AMD"),
        (XEON, {"quantize": "int8", "runtime": "torch"}, r"QUANTIZE=int8.*OpenVINO"),
        (WITH_OPENVINO, {"quantize": "int4", "runtime": "torch"}, r"QUANTIZE=int4 is not available here: .*OpenVINO"),
        (GPU, {"quantize": "int4"}, r"QUANTIZE=int4 is not available here: .*CPUs"),
        # torch.compile needs a C++ compiler, and triton on a GPU.
        (NO_GPU, {"fuse": "compile"}, r"FUSE=compile is not available here: .*C\+\+ compiler"),
        (TRITON, {"fuse": "compile"}, r"C\+\+ compiler"),
        (replace(NO_GPU, compiler="c++"), {"fuse": "compile", "model_id": "fake"}, "does not run in torch"),
        (NO_GPU, {"fuse": "kernels"}, "FUSE=kernels is not available here: .*for GPUs"),
        (GPU, {"fuse": "kernels"}, "triton"),
        (NO_GPU, {"runtime": "openvino"}, "RUNTIME="),
        (GPU, {"runtime": "openvino", "device": "cuda"}, "RUNTIME=openvino: it is for CPUs"),
        (COMPILING, {"runtime": "openvino", "fuse": "compile"}, "RUNTIME=torch; OpenVINO compiles"),
        (XEON, {"runtime": "openvino", "dtype": "float16"}, "RUNTIME=openvino: .*float16"),
        # On a CPU nothing else needs torch; the line says what does.
        (LEAN, {"runtime": "torch"}, "torch is needed .*RUNTIME=torch.* not installed"),
        (LEAN, {"dtype": "float16"}, "torch is needed .*float16.* not installed"),
        (replace(LEAN, gpu=True), {"device": "cuda"}, "torch is not installed"),
        (replace(NO_GPU, qwen=False), {"model_id": "demo"}, r"Qwen3-ASR are not installed: pip install '\.\[cpu\]'"),
        (XEON, {"cpu_threads": 2, "model_id": "fake"}, "CPU_THREADS=2"),
        (NO_GPU, {"jobs_database_url": "postgresql://db/asr"}, "JOBS_DATABASE_URL: asyncpg is not installed"),
        *(
            (NO_GPU, {"gateway_mode": True, "engine_process": where}, "GATEWAY_MODE=true needs an engine process")
            for where in ("false", "unix:/run/asr/engine.sock")
        ),
        (NO_GPU, {"dual_model": True}, "DUAL_MODEL needs FAST_MODEL_ID"),
        (NO_GPU, {"use_speculative": True}, "USE_SPECULATIVE needs FAST_MODEL_ID"),
        (NO_GPU, {"model_id": "demo", "fast_model_id": "demo", "dual_model": True}, "FAST_MODEL_ID is MODEL_ID=demo"),
        (NO_GPU, {"model_id": "demo,auto"}, "`auto` is only for the first model of MODEL_ID"),
        (NO_GPU, {"model_id": ",".join("abcdefghi")}, "at most 8 models"),
    ],
)
def test_what_cannot_work_refuses(machine, values, words):
    """The error names what is missing, or the settings that contradict each other."""
    with pytest.raises(plan.PlanError, match=words):
        planned(machine, **values)


def test_every_conflict_is_named():
    with pytest.raises(plan.PlanError) as refusal:
        planned(NO_GPU, device="cuda", quantize="fp8", dual_model=True)
    text = str(refusal.value)
    assert all(word in text for word in ("DEVICE=cuda", "QUANTIZE", "DUAL_MODEL", "driver", "CPU build"))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"model_id": "fake, demo,fake,demo"}, ["fake", "demo"]),
        ({"model_id": f"auto,demo,{SMALL}"}, [SMALL, "demo"]),
        ({"model_id": "demo", "fast_model_id": "fake"}, ["demo"]),
        ({"model_id": "demo", "fast_model_id": "fake", "dual_model": True}, ["demo", "fake"]),
        ({"model_id": "o/a,o/b", "fast_model_id": "o/b", "use_speculative": True}, ["o/a", "o/b"]),
    ],
)
def test_models_are_resident_once_and_the_first_is_the_default(values, expected):
    """MODEL_ID names them, and an option may add the fast model. All share the memory."""
    resolved = planned(NO_GPU, **values)
    assert [resolved.model_id, *(other.model_id for other in resolved.others)] == expected
    assert {resolved.shares, *(other.shares for other in resolved.others)} == {len(expected)}
    assert resolved.is_active("models") is (len(expected) > 1)
    assert resolved.value("models") == ", ".join(expected) * (len(expected) > 1)
