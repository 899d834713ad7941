"""The kernels on a CPU: what they compute on Triton's interpreter, and that they compile for GPUs.

Both are done in processes of their own, as the environment says when Triton's functions are defined. Triton is in a
folder of its own (`make .venv/.kernels`). Torch passes tensors in shared memory: what a kernel writes is seen here.
"""

import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch

from asr_server.engine.torch.language_model import Room, TorchOperations

pytestmark = [pytest.mark.torch, pytest.mark.nightly, pytest.mark.timeout(900)]

EPS = 1e-6
FIELDS = "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size"
SIZES = {
    name: SimpleNamespace(**dict(zip(FIELDS, sizes, strict=True)), rms_norm_eps=EPS, hidden_act="silu")
    for name, *sizes in (
        ("demo", 192, 512, 4, 2, 48, 661),
        ("0.6b", 1024, 3072, 16, 8, 128, 151_936),
        ("1.7b", 2048, 6144, 16, 8, 128, 151_936),
    )
}
EAGER = TorchOperations(torch.nn.SiLU(), EPS)
# Torch's operations round to 16 bits one after the other, the kernels once; in float32 these add in another order. The
# interpreter cuts bits off where a GPU rounds to bfloat16, in the mean twice the error where torch rounds once, too.
MOST = {torch.float32: 2.0, torch.float16: 1.0, torch.bfloat16: 2.5}
KERNELS = ["_added", "_heads", "_gated", "_parts", "_merged"]
# Number of compute capability or architecture, and threads of a warp: of T4, A100, L4, H100, B200, RTX 5090 and MI300.
TARGETS = [
    *(("cuda", capability, 32) for capability in (75, 80, 89, 90, 100, 120)),
    ("hip", "gfx942", 64),
]


def _process(tmp_path_factory, interpret):
    """Return a pool of one process that can import Triton."""
    cache = str(tmp_path_factory.mktemp("triton"))
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _prepare, (interpret, cache))


def _prepare(interpret, cache):
    os.environ.update(TRITON_INTERPRET=interpret, TRITON_CACHE_DIR=cache)
    sys.path.insert(0, str(Path(sys.prefix) / "kernels"))
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def interpreter(tmp_path_factory):
    with _process(tmp_path_factory, "1") as pool:
        yield pool


@pytest.fixture
def run(interpreter):
    return lambda name, *arguments: interpreter.submit(_call, name, arguments).result()


def _call(name, arguments):
    from asr_server.engine.torch import fused

    owner = fused if hasattr(fused, name) else fused.FusedOperations(EPS)
    return getattr(owner, name)(*arguments)


@pytest.fixture(params=SIZES)
def sizes(request):
    return SIZES[request.param]


@pytest.fixture(params=[1, 3, 33])
def n(request):
    return request.param


@pytest.fixture(params=MOST, ids=str)
def random(request):
    generator = torch.Generator().manual_seed(7)
    return lambda *shape: torch.randn(shape, generator=generator).to(request.param)


def _precise(found, eager, exact):
    """True if the norm of the errors is at most that of torch's operations, but for `MOST`."""
    assert (found.dtype, found.shape) == (eager.dtype, exact.shape)
    error, limit = ((one.double() - exact).norm() for one in (found, eager))
    return error <= MOST[found.dtype] * limit


def test_a_sum_and_its_norm_are_as_precise_as_torch(run, sizes, n, random):
    """The rows are as long as the model is wide, and their numbers differ in size."""
    d = sizes.hidden_size
    given = random(n, d) * torch.logspace(-2, 2, n)[:, None].to(random(0).dtype), random(n, d), random(d)
    exact = EAGER.added(*[tensor.double() for tensor in given])
    assert all(map(_precise, run("added", *given), EAGER.added(*given), exact))


@pytest.mark.parametrize("name", ["demo", "1.7b"])  # the released models have the same heads
def test_heads_are_as_precise_as_torch_and_nothing_else_is_written(run, name, n, random):
    """Values are kept as they are, each at the place of its token. Whatever is beside them stays."""
    kv_heads, dim = SIZES[name].num_key_value_heads, SIZES[name].head_dim
    heads = SIZES[name].num_attention_heads + kv_heads
    qkv, weights, cos, sin = random(n, (heads + kv_heads) * dim), random(heads, dim), random(n, dim), random(n, dim)
    # Tokens of two layers, keys and values beside each other, and one column more than a head has.
    buffer = torch.full((n + 9, 2, 2, kv_heads, dim + 1), 7).to(qkv.dtype)
    places = torch.randperm(n + 8, generator=torch.Generator().manual_seed(1))[:n]
    kept = torch.arange(n) % 8 < 7  # one token in eight is padding, written to the last place
    places[~kept] = n + 8
    keys, values = buffer[:, 1, :, :, :-1].unbind(1)
    found = run("heads", qkv, weights, (cos, sin), Room(keys, values, places)), keys[places]
    eager, exact = (
        EAGER.rotated(*(given.to(dtype) for given in (qkv, weights, cos, sin))).tensor_split([-kv_heads], dim=1)
        for dtype in (None, torch.float64)
    )
    for one, rounded, precise in zip(found, eager, exact, strict=True):
        assert _precise(one[kept], rounded[kept], precise[kept])
    v = qkv.unflatten(1, (-1, dim))[:, -kv_heads:]
    assert torch.equal(values[places[kept]], v[kept])
    others = torch.ones(len(buffer), dtype=torch.bool).index_fill(0, places, False)
    assert (buffer[others] == 7).all()
    assert (buffer[:, 0] == 7).all()
    assert (buffer[..., -1] == 7).all()
    written = buffer.clone()
    buffer.fill_(7)
    run("heads", qkv, weights, (cos, sin), Room(keys, values, places.int()))
    assert torch.equal(buffer, written)


def test_a_gate_is_as_precise_as_torch(run, sizes, n, random):
    """A row has several blocks, and the last one is not full for the demonstration checkpoint."""
    gate_up = random(n, 2 * sizes.intermediate_size)
    assert _precise(run("gated", gate_up), EAGER.gated(gate_up), EAGER.gated(gate_up.double()))


def test_a_gate_far_from_zero_is_open_or_closed(run, random):
    """There an exponential leaves the range of float32."""
    gates = torch.tensor([[120.0, 30_000.0, -120.0, -30_000.0]]).to(random(0).dtype)
    found = run("gated", torch.cat([gates, torch.ones_like(gates)], -1))
    assert torch.equal(found, gates.clamp(min=0))


def _choice(logits, watched):
    """Return what `likeliest` does, by torch."""
    ids = torch.stack([logits.argmax(-1), torch.full(logits.shape[:1], watched)], -1)
    logprobs = logits.gather(-1, ids) - logits.logsumexp(-1, keepdim=True)
    return torch.cat([ids[:, :1].double(), logprobs.double()], -1)


@pytest.mark.parametrize("places", [(5, 6), (4095, 4096), (9000, 4), (151_935, 9999), (9999,)])
def test_of_equal_logits_the_lowest_id_is_chosen(run, random, places):
    """In one block and in several; the token is also the one that is watched."""
    logits = random(1, 151_936)
    logits[0, list(places)] = 9.0
    ((token, logprob, watched),) = run("likeliest", logits, min(places)).tolist()
    assert token == min(places)
    assert logprob == watched > -8


@pytest.mark.parametrize(
    ("bad", "place"), [*product([torch.nan, torch.inf], [0, 4096, 9999]), (-torch.inf, slice(None))]
)
def test_an_overflow_of_one_row_shows_in_its_log_probabilities(run, random, bad, place):
    """Wherever it is, and if no token is possible. The id is one of the vocabulary, as it is embedded at once."""
    logits = random(3, 10_000)
    logits[1, place] = bad
    logits[2, :8192] = -torch.inf
    found = run("likeliest", logits, 9000)
    assert not found[1, 1:].isfinite().any()
    assert 0 <= found[1, 0] < 10_000
    rest = torch.tensor([0, 2])
    assert (found[rest] - _choice(logits[rest].double(), 9000)).abs().max() < 1e-5
    assert run("likeliest", logits, 17)[2, 2] == -torch.inf


def _no_compiler(*_, **__):
    raise RuntimeError("no compiler\nwas found")


def _turned(right, *given):
    *others, room = given
    return right(*others, room._replace(places=room.places.flip(0)))


# What is said where a function is replaced by another, which is given it first.
WRONG = {
    "added": ("norms differ from torch's by ", lambda _, own, x, y, weight: (x + y, x + y)),
    "heads": ("keys differ from torch's by ", _turned),
    "gated": ("gates differ from torch's by ", lambda _, own, gate_up: gate_up.chunk(2, -1)[1]),
    "likeliest": ("choices differ from torch's by ", lambda right, logits, watched: right(logits, watched - 1)),
    "launch": ("RuntimeError: no compiler", _no_compiler),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_kernel_that_cannot_be_used_is_named(interpreter, name):
    """One that computes something else, or the first line of why none can be launched."""
    said = interpreter.submit(_problem_with, name).result()
    assert said.startswith(WRONG[name][0])
    assert "\n" not in said


def _problem_with(name):
    from asr_server.engine.torch import fused

    owner = fused if hasattr(fused, name) else fused.FusedOperations
    right, (_, wrong) = getattr(owner, name), WRONG[name]
    with patch.object(owner, name, lambda *given, **named: wrong(right, *given, **named)):
        return fused.problem(SIZES["demo"], torch.device("cpu"), torch.float32)


@pytest.fixture(scope="module")
def compiler(tmp_path_factory):
    with _process(tmp_path_factory, "0") as pool:
        yield pool


@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize("dtype", MOST, ids=str)
def test_each_kernel_compiles_for_a_gpu(compiler, target, dtype):
    """To machine code, with no more shared memory than every GPU has; each function launches one, the choice two."""
    assert compiler.submit(_launched, target, dtype).result() == KERNELS


def _driver(target):
    """Return a GPU that is not there: what Triton asks of a driver, with launches that do nothing."""

    def load_binary(name, binary, shared, device):
        assert len(binary) > 1000
        registers, spilled, threads = 32, 0, 1024
        return None, 1, registers, spilled, threads

    driver = SimpleNamespace(launched=[], load_binary=load_binary)
    driver.utils = driver
    driver.get_current_target = lambda: target
    driver.get_current_device = lambda: 0
    driver.get_current_stream = lambda device: 0
    driver.get_device_properties = lambda device: {"max_shared_mem": 48 * 1024}
    driver.launcher_cls = lambda source, metadata: lambda *_: driver.launched.append(metadata.name)
    return driver


def _compiling(target):
    """Return the module, with nothing compiled, and the driver of a GPU."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    from asr_server.engine.torch import fused

    driver.set_active(_driver(GPUTarget(*target)))
    for name in KERNELS:
        getattr(fused, name).device_caches.clear()
    return fused, driver.active


def _launched(target, dtype):
    fused, driver = _compiling(target)
    for _ in fused.compared(SIZES["1.7b"], torch.device("cpu"), dtype):
        pass
    return driver.launched


def test_other_numbers_of_tokens_compile_nothing(compiler):
    """Also where places begin anywhere in a tensor. A kernel that is compiled while rows decode delays them all."""
    assert compiler.submit(_compiled).result() == dict.fromkeys(KERNELS, 1)


def _compiled():
    fused, _ = _compiling(TARGETS[0])
    for n in (1, 2, 16, 33):
        x, logits = torch.zeros(n, 128), torch.zeros(n, 661)
        operations = fused.FusedOperations(EPS)
        operations.added(x, x, x[0])
        operations.gated(x)
        fused.likeliest(logits, 5)
        places = torch.zeros(n + 1, dtype=torch.long)[n % 2 :]
        buffer = torch.zeros(2, 9, 1, 32)
        operations.heads(x, x[:, :96].reshape(-1, 32)[:3], (x[:, :32], x[:, :32]), Room(*buffer, places))
    return {name: len(getattr(fused, name).device_caches[0][0]) for name in KERNELS}
