"""The plan as a table."""

from dataclasses import replace

import pytest

from asr_server.core import settings
from asr_server.engine import plan
from asr_server.engine.capabilities import Capabilities
from asr_server.engine.cpu import CpuShare
from asr_server.engine.gpu import Build, Driver, Gpus
from asr_server.features.host.numa import Node, Numa

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
    """One error lists all conflicts, each with a way out."""
    with pytest.raises(plan.PlanError) as refusal:
        plan.resolve(_settings(device="cuda", quantize="fp8", use_vllm=True), NO_GPU)
    text = str(refusal.value)
    assert all(word in text for word in ("DEVICE=cuda", "QUANTIZE", "USE_VLLM", "driver", "CPU build"))


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
    assert resolved.cuda_graphs is _option(resolved, "use_cuda_graphs").active is recorded


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
    assert {"device", "dtype", "batching", "attention", "use_vllm", "quantize"} <= {o.name for o in options}
    assert all(o.reason for o in options)
    assert all(o.active or not o.value for o in options)


def test_fusing_needs_what_compiles():
    """A C++ compiler on a CPU, triton on a GPU; the engine must compute in torch."""
    equipped = replace(NO_GPU, compiler="/usr/bin/g++")
    assert plan.resolve(_settings(use_torch_compile=True), equipped).compiled
    assert not plan.resolve(_settings(), equipped).compiled
    assert plan.resolve(_settings(use_torch_compile=True), replace(GPU, packages=frozenset(("triton",)))).compiled
    for machine, words in ((NO_GPU, "C\\+\\+ compiler"), (GPU, "triton")):
        with pytest.raises(plan.PlanError, match=words):
            plan.resolve(_settings(use_torch_compile=True), machine)
    with pytest.raises(plan.PlanError, match="does not run in torch"):
        plan.resolve(_settings(use_torch_compile=True, model_id="moonshine-tiny-en"), equipped)


def _card(name, **values):
    gpus = Gpus(driver=Driver.NVIDIA, build=Build.CUDA, cards=(name,))
    return replace(GPU, gpus=gpus, packages=frozenset(("bitsandbytes", "torchao")), **values)


@pytest.mark.parametrize(("wanted", "card"), [("int8", "Tesla T4"), ("fp8", "NVIDIA L4"), ("fp8", "an unknown card")])
def test_eight_bits_on_a_gpu_are_chosen_by_name(wanted, card):
    """Eight bits are chosen where the card has units for them, or is not known before the model is loaded; no steps are
    recorded."""
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
    """Each is chosen only where the processor has its instructions, and 8 bits not on a GPU; the plan says what
    follows."""
    resolved = plan.resolve(_settings(), machine)
    assert (resolved.dtype, resolved.quantize) == (dtype, "int8" * int8)
    assert (_option(resolved, "quantize").active, _option(resolved, "quantize").value) == (int8, "int8" * int8)
    assert _option(resolved, "exact_batching").active is exact
    assert exact or "near ties" in _option(resolved, "exact_batching").reason


def test_number_formats_that_are_set_are_taken():
    """The demonstration model takes them too, which has neither by itself since it would gain nothing."""
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
    """The plan has the fact that the number follows from; an engine that cannot be told refuses one."""
    machine = replace(XEON, cpu=CpuShare(3, "a quota of 3.5"))
    resolved = plan.resolve(_settings(), machine)
    assert (resolved.cpu_threads, _option(resolved, "cpu_threads").reason) == (3, "a quota of 3.5")
    assert plan.resolve(_settings(cpu_threads=2), machine).cpu_threads == 2
    with pytest.raises(plan.PlanError, match="CPU_THREADS=2"):
        plan.resolve(_settings(cpu_threads=2, model_id="moonshine-tiny-en"), machine)


@pytest.mark.parametrize("gateway", [True, False])
def test_the_gateway_is_an_option_like_any_other(gateway):
    """The gateway is in the plan, on or off, with the reason."""
    (line,) = (o for o in plan.resolve(_settings(gateway_mode=gateway), NO_GPU).options if o.name == "gateway_mode")
    assert line.active is gateway
    assert line.reason


def test_the_english_model_runs_on_the_cpu_and_aligns_with_its_own_weights():
    """The CPU is used also where there is a GPU; another aligner that is named is taken, and none without a name."""
    resolved = plan.resolve(_settings(model_id="moonshine-tiny-en"), GPU)
    assert (resolved.engine, resolved.device, resolved.dtype) == ("moonshine", "cpu", "float32")
    assert (resolved.aligner_id, resolved.traits.aligns) == ("moonshine-tiny-en", True)
    assert resolved.traits.languages == ("English",)
    named = plan.resolve(_settings(model_id="moonshine-tiny-en", forced_aligner_id="demo"), NO_GPU)
    assert (named.aligner_id, named.traits.aligns) == ("demo", True)


TWO_NODES = replace(
    XEON,
    numa=Numa(
        {n: Node(n, (2 * n, 2 * n + 1), CpuShare(n + 1, f"of node {n}"), prefers_memory=n == 0) for n in (0, 1)},
        gpu_nodes=frozenset([1]),
    ),
)


@pytest.mark.parametrize(
    ("wanted", "number", "word"),
    [(None, None, "not set"), (0, 0, "prefer"), (1, 1, "no memory policy"), ("auto", 1, "GPU")],
)
def test_threads_are_bound_to_the_node_that_is_set(wanted, number, word):
    """The number of threads follows from the node; `auto` is the GPU's. The plan says what becomes of the memory."""
    resolved = plan.resolve(_settings(numa_node=wanted), TWO_NODES)
    option = _option(resolved, "numa_node")
    assert (option.active, option.value) == (number is not None, "" if number is None else str(number))
    assert word in option.reason
    assert resolved.node == TWO_NODES.numa.nodes.get(number)
    assert resolved.cpu_threads == (XEON.cpu.threads if number is None else number + 1)


def test_a_node_that_is_not_there_is_refused_with_those_that_are():
    """The plan is refused also where `auto` would have to choose; without a GPU the option is inactive with the
    reason."""
    with pytest.raises(plan.PlanError, match=r"NUMA_NODE=2: the nodes .* are 0, 1\."):
        plan.resolve(_settings(numa_node=2), TWO_NODES)
    several = replace(TWO_NODES, numa=replace(TWO_NODES.numa, gpu_nodes=frozenset([0, 1])))
    with pytest.raises(plan.PlanError, match="NUMA_NODE=auto: the GPUs are at the nodes 0, 1"):
        plan.resolve(_settings(numa_node="auto"), several)
    none = replace(TWO_NODES, numa=replace(TWO_NODES.numa, gpu_nodes=frozenset()))
    assert "no memory node of a GPU" in _option(plan.resolve(_settings(numa_node="auto"), none), "numa_node").reason


VLLM = replace(NO_GPU, vllm="/usr/bin/vllm")
ELSEWHERE = {"vllm_base_url": "http://model:8000/v1/"}


def test_a_model_elsewhere_needs_nothing_here():
    """The packages of Qwen3-ASR are not needed: word times are then estimated. The model's name is that of the other
    server."""
    slim = replace(NO_GPU, qwen=False)
    resolved = plan.resolve(_settings(**ELSEWHERE, vllm_api_key="k"), slim)
    assert (resolved.engine, resolved.model_id, resolved.aligner_id) == ("remote", "remote", "")
    assert (resolved.remote.url, resolved.remote.key, resolved.remote.model) == ("http://model:8000/v1", "k", "")
    assert (resolved.traits.aligns, resolved.traits.scores) == (False, False)
    assert plan.resolve(_settings(**ELSEWHERE, model_id="demo"), slim).remote.model == "demo"


def test_words_of_a_model_elsewhere_are_placed_in_time_here():
    """The aligner that is set or the released one runs on the device of this machine."""
    resolved = plan.resolve(_settings(**ELSEWHERE, model_id="demo"), GPU)
    assert (resolved.aligner_id, resolved.device) == ("Qwen/Qwen3-ForcedAligner-0.6B", "cuda")
    assert "of the aligner" in _option(resolved, "device").reason
    assert resolved.max_batch == 32


@pytest.mark.parametrize(
    ("values", "machine", "words"),
    [
        ({"use_vllm": True}, NO_GPU, ["no command `vllm`"]),
        ({"use_vllm": True, **ELSEWHERE}, VLLM, ["unset one of them"]),
        ({"use_vllm": True, "model_id": "demo"}, VLLM, ["does not run MODEL_ID=demo"]),
        ({**ELSEWHERE, "cpu_threads": 2, "quantize": "int8"}, NO_GPU, ["CPU_THREADS is for", "QUANTIZE is for"]),
        ({**ELSEWHERE, "kv_budget_mb": 9, "use_cuda_graphs": True}, GPU, ["KV_BUDGET_MB", "USE_CUDA_GRAPHS"]),
        ({**ELSEWHERE, "model_revision": "v1", "dual_model": True}, NO_GPU, ["MODEL_REVISION", "DUAL_MODEL"]),
        ({**ELSEWHERE, "forced_aligner_id": "moonshine-tiny-en"}, NO_GPU, ["FORCED_ALIGNER_ID=moonshine-tiny-en"]),
        ({**ELSEWHERE, "forced_aligner_id": "demo"}, replace(NO_GPU, qwen=False), ["pip install"]),
        ({"vllm_api_key": "k"}, NO_GPU, ["VLLM_API_KEY is for VLLM_BASE_URL"]),
        ({"use_granian": True}, NO_GPU, ["Granian is not installed"]),
        ({"jobs_database_url": "postgresql://db/asr"}, NO_GPU, ["JOBS_DATABASE_URL: asyncpg is not installed"]),
    ],
)
def test_what_does_not_fit_a_model_elsewhere_is_refused(values, machine, words):
    """The error names the setting; packages that this installation lacks are refused too."""
    with pytest.raises(plan.PlanError) as refusal:
        plan.resolve(_settings(**values), machine)
    assert all(word in str(refusal.value) for word in words)


def test_vllm_and_granian_are_active_where_they_are_installed():
    """The options are shown as active."""
    resolved = plan.resolve(_settings(use_vllm=True, use_granian=True), replace(VLLM, packages=frozenset(["granian"])))
    assert _option(resolved, "use_vllm").active
    assert _option(resolved, "use_granian").active
    assert resolved.remote.command == ("/usr/bin/vllm", "serve", "Qwen/Qwen3-ASR-0.6B", "--max-num-seqs=32")


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


def test_speakers_are_told_apart_by_the_models_of_a_directory_or_of_the_hub(tmp_path):
    """The directory is looked at when the server starts, the hub when speakers are first asked for."""
    for name in ("segmentation.onnx", "embedding.ort"):
        (tmp_path / name).touch()
    for source, where in ((str(tmp_path), "of a directory"), ("owner/voices", "of the hub")):
        option = _option(plan.resolve(_settings(speakers=source), NO_GPU), "speakers")
        assert (option.active, option.value) == (True, source)
        assert where in option.reason


@pytest.mark.parametrize(
    ("files", "word"),
    [
        (None, "no such directory, and it is no hub id"),
        (["embedding.onnx"], "neither segmentation.onnx, segmentation.ort nor model.onnx"),
        (["model.onnx"], "neither embedding.onnx nor embedding.ort"),
        (["model.onnx", "embedding.onnx", "plda.npz"], "it has plda.npz alone"),
    ],
)
def test_a_directory_without_the_models_of_speakers_refuses(tmp_path, files, word):
    """The error has the names of the files that are looked for."""
    directory = tmp_path / "models"
    if files is not None:
        directory.mkdir()
        for name in files:
            (directory / name).touch()
    with pytest.raises(plan.PlanError, match=f"SPEAKERS={directory}: .*{word}"):
        plan.resolve(_settings(speakers=str(directory)), NO_GPU)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"models": "demo, moonshine-tiny-en"}, ["demo", "moonshine-tiny-en"]),
        ({"model_id": "fake", "models": "demo,fake,demo"}, ["fake", "demo"]),
        ({"model_id": "demo", "fast_model_id": "moonshine-tiny-en"}, ["demo"]),
        ({"model_id": "demo", "fast_model_id": "moonshine-tiny-en", "dual_model": True}, ["demo", "moonshine-tiny-en"]),
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
    assert plan.chosen_model(_settings(**values), NO_GPU) == expected[0]


def test_what_concerns_one_model_is_not_asked_of_the_others():
    """A revision is MODEL_ID's; the English model runs on the CPU also where the default runs on a GPU."""
    values = {"model_id": "o/a", "models": "moonshine-tiny-en,o/b", "model_revision": "v1", "device": "cuda"}
    resolved = plan.resolve(_settings(**values, dtype="bfloat16"), GPU)
    english, other = resolved.others
    assert (english.device, english.dtype, other.device, other.dtype) == ("cpu", "float32", "cuda", "bfloat16")
    assert (resolved.model_revision, other.model_revision) == ("v1", "")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"dual_model": True}, "DUAL_MODEL needs FAST_MODEL_ID"),
        ({"use_speculative": True}, "USE_SPECULATIVE needs FAST_MODEL_ID"),
        ({"model_id": "demo", "fast_model_id": "demo", "dual_model": True}, "FAST_MODEL_ID is MODEL_ID=demo"),
        ({"models": "demo,auto"}, "`auto` is for MODEL_ID alone"),
        ({"models": ",".join("abcdefghi")}, "at most 8 models"),
    ],
)
def test_models_that_contradict_each_other_refuse(values, words):
    """The error has the settings at fault."""
    with pytest.raises(plan.PlanError, match=words):
        plan.resolve(_settings(**values), NO_GPU)


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
    """Each pair of encoders is refused, and each one where its library or its checkpoint is missing."""
    wanted = {name.lower(): True if name.startswith("USE") else file for name in names}
    with pytest.raises(plan.PlanError, match=words) as refusal:
        plan.resolve(_settings(**{"model_id": "o/model", **values, **wanted}), machine)
    assert all(name in str(refusal.value) for name in names)


@pytest.mark.parametrize("name", ["onnx_encoder_path", "trt_encoder_path"])
def test_an_encoder_file_that_is_missing_refuses(name):
    """The server refuses at start, not with the first request."""
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
