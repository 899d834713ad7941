"""Plans for a model that another server runs."""

import sys
from dataclasses import replace

import pytest

from asr_server.engine import plan
from asr_server.engine.capabilities import probe
from asr_server.engine.conftest import GPU, NO_GPU, planned
from asr_server.features.remote_engine.conftest import SLIM

VLLM = replace(NO_GPU, vllm="/usr/bin/vllm")
ELSEWHERE = {"vllm_base_url": "http://model:8000/v1/"}


def test_a_model_elsewhere_needs_nothing_here():
    """Word times are then estimated. The key is not shown where tests and tools print a plan."""
    resolved = planned(SLIM, **ELSEWHERE, vllm_api_key="secret")
    assert "secret" not in repr(resolved)
    assert (resolved.engine, resolved.model_id, resolved.aligner_id) == ("remote", "remote", "")
    assert (resolved.remote.url, resolved.remote.key, resolved.remote.model) == ("http://model:8000/v1", "secret", "")
    assert (resolved.traits.aligns, resolved.traits.scores) == (False, False)
    assert planned(SLIM, **ELSEWHERE, model_id="demo").remote.model == "demo"


def test_words_of_a_model_elsewhere_are_placed_in_time_here():
    """The aligner that is set or the released one runs on the device of this machine."""
    resolved = planned(GPU, **ELSEWHERE, model_id="demo")
    assert (resolved.aligner_id, resolved.device) == ("Qwen/Qwen3-ForcedAligner-0.6B", "cuda")
    assert "of the aligner" in resolved.reason("device")
    assert resolved.max_batch == 32


@pytest.mark.parametrize(
    ("values", "machine", "words"),
    [
        ({"use_vllm": True}, NO_GPU, ["no command `vllm`"]),
        ({"use_vllm": True, **ELSEWHERE}, VLLM, ["unset one of them"]),
        ({"use_vllm": True, "model_id": "demo"}, VLLM, ["does not run MODEL_ID=demo"]),
        ({**ELSEWHERE, "cpu_threads": 2, "quantize": "int8"}, NO_GPU, ["CPU_THREADS is for", "QUANTIZE is for"]),
        ({**ELSEWHERE, "kv_budget_mb": 9, "use_cuda_graphs": True}, GPU, ["KV_BUDGET_MB", "USE_CUDA_GRAPHS"]),
        ({**ELSEWHERE, "dual_model": True}, NO_GPU, ["DUAL_MODEL"]),
        ({**ELSEWHERE, "forced_aligner_id": "moonshine-tiny-en"}, NO_GPU, ["FORCED_ALIGNER_ID=moonshine-tiny-en"]),
        ({**ELSEWHERE, "forced_aligner_id": "demo"}, SLIM, ["pip install"]),
        ({"vllm_api_key": "k"}, NO_GPU, ["VLLM_API_KEY is for VLLM_BASE_URL"]),
    ],
)
def test_what_does_not_fit_a_model_elsewhere_is_refused(values, machine, words):
    """The error names the setting; packages that this installation lacks are refused too."""
    with pytest.raises(plan.PlanError) as refusal:
        planned(machine, **values)
    assert all(word in str(refusal.value) for word in words)


def test_the_command_vllm_beside_the_interpreter_comes_first(tmp_path, monkeypatch):
    elsewhere, beside = tmp_path / "elsewhere" / "vllm", tmp_path / "beside" / "vllm"
    monkeypatch.setenv("PATH", str(elsewhere.parent))
    monkeypatch.setattr(sys, "executable", str(beside.with_name("python")))
    assert probe().vllm == ""
    for command in (elsewhere, beside):
        command.parent.mkdir()
        command.touch(0o700)
        assert probe().vllm == str(command)


def test_the_command_of_vllm_has_the_model_its_revision_and_the_number_format():
    usual, chosen = (planned(VLLM, use_vllm=True, **how) for how in ({}, {"model_id": "o/m@v2", "dtype": "bfloat16"}))
    command, rows = ("/usr/bin/vllm", "serve"), "--max-num-seqs=32"
    assert usual.remote.command == (*command, "Qwen/Qwen3-ASR-0.6B", rows)
    assert chosen.remote.command == (*command, "o/m", rows, "--dtype=bfloat16", "--revision=v2")
