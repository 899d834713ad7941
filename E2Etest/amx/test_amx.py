"""The engine on the kernels for AMX, which `amx.c` provides where the processor does not."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from asr_server.engine import cpu

pytestmark = [pytest.mark.nightly, pytest.mark.slow, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]
_SOURCE = ROOT / "src/asr_server"
_NEEDED = {"cpuid_fault", "avx512f", "avx512_bf16"}


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """The library, built."""
    flags = cpu.flags()
    if "amx_tile" in flags:
        pytest.skip("this processor has AMX, so the tests of the engine run on it")
    if not flags >= _NEEDED or shutil.which("gcc") is None:
        pytest.skip(f"needs gcc and a processor with {', '.join(sorted(_NEEDED))}")
    file = tmp_path_factory.mktemp("amx") / "amx.so"
    options = ["-O2", "-Wall", "-Wextra", "-Werror", "-mavx512f", "-shared", "-fPIC"]
    subprocess.run(["gcc", *options, "-o", file, Path(__file__).parent / "amx.c"], check=True)
    if _python(file, "-c", "pass").returncode == 77:
        pytest.skip("this kernel or hypervisor does not let CPUID fault")
    return file


def _python(library, *arguments):
    environment = {**os.environ, "LD_PRELOAD": str(library), "ONEDNN_VERBOSE": "0", "AMX_COUNT": "1"}
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


_INTEGERS = """
import torch
for n, k, m in ((1, 64, 16), (17, 100, 33), (70, 256, 80)):
    x = torch.randint(0, 4, (n, k)).bfloat16()
    w = torch.randint(-3, 4, (m, k)).bfloat16()
    y = torch.nn.functional.linear(x, w, torch.zeros(m).bfloat16())
    assert torch.equal(y, (x.float() @ w.float().T).bfloat16())
assert torch.cpu._is_amx_tile_supported()
"""


def test_torch_multiplies_by_tiles_and_rightly(library):
    """Sums of small integers are exact, so the library's own arithmetic has no excuse."""
    done = _python(library, "-c", _INTEGERS)
    assert done.returncode == 0, done.stderr
    assert "amx: 0 tile instructions" not in done.stderr
    assert "tile instructions" in done.stderr


@pytest.mark.parametrize("tests", ["engine/qwen_asr", "features/speech_output/engines/qwen_tts"])
def test_the_engine_passes_its_tests(library, tests):
    """Recordings, live sessions, the aligner, speech, and each product by itself."""
    done = _python(library, "-m", "pytest", "-p", "no:schemathesis", "--timeout", "600", _SOURCE / tests)
    assert done.returncode == 0, done.stdout[-4000:]
