"""Small operations of the layers fused by torch.compile. Compiling takes half a minute."""

import shutil

import pytest
from torch._dynamo import reset
from torch._dynamo.utils import counters

from asr_server.engine.conftest import loaded_qwen
from asr_server.engine.protocol import Option, Utterance

pytestmark = [pytest.mark.torch, pytest.mark.nightly, pytest.mark.timeout(600)]


def test_fused_operations_give_the_same_ids(make_engine, run, clips):
    """Alone and in a batch. Each operation is one graph for many tokens and one for a single one."""
    if not shutil.which("g++"):
        pytest.fail("a C++ compiler is needed, as for the option itself")
    plain, work = make_engine(), [Utterance(clip) for clip in clips]
    expected = [[found.ids for found in run(plain, items)] for items in (work, work[:1])]
    reset()
    counters.clear()
    engine = loaded_qwen(options=(Option("fuse", True, "compile", ""),))
    assert (counters["stats"]["unique_graphs"], len(counters["graph_break"])) == (8, 0)
    assert [[found.ids for found in run(engine, items)] for items in (work, work[:1])] == expected
    assert counters["stats"]["unique_graphs"] == 8  # nothing was compiled while rows waited
