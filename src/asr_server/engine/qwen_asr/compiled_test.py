"""Small operations of the layers fused by torch.compile. Compiling takes half a minute."""

import shutil

import pytest
import torch

from asr_server.engine.feature import Plan
from asr_server.engine.protocol import Option, Utterance
from asr_server.engine.qwen_asr.engine import QwenEngine

pytestmark = [pytest.mark.torch, pytest.mark.nightly, pytest.mark.timeout(600)]


def test_fused_operations_give_the_same_ids(make_engine, run, clips):
    """The ids are equal in float32, alone and in a batch; each operation is one graph for many tokens and one for a
    single one."""
    if not shutil.which("g++"):
        pytest.fail("a C++ compiler is needed, as for the option itself")
    plain, work = make_engine(), [Utterance(clip) for clip in clips]
    expected = [[found.ids for found in run(plain, items)] for items in (work, work[:1])]
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    engine = QwenEngine(Plan("qwen", "demo", "cpu", "float32", 4, 0, (Option("use_torch_compile", True, "", ""),)))
    engine.load()
    counted = torch._dynamo.utils.counters
    assert (counted["stats"]["unique_graphs"], len(counted["graph_break"])) == (8, 0)
    assert [[found.ids for found in run(engine, items)] for items in (work, work[:1])] == expected
    assert counted["stats"]["unique_graphs"] == 8  # nothing was compiled while rows waited
