"""Memory nodes, on trees of files as kernels show them, and for real on this machine's first node."""

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from unittest import mock

import pytest

from asr_server import feature_list
from asr_server.core import settings
from asr_server.core.errors import ModelUnavailable
from asr_server.engine import core, plan
from asr_server.engine.capabilities import Capabilities
from asr_server.engine.cpu import ONE_THREAD, CpuShare
from asr_server.features.host import FEATURE, numa

NODE = "sys/devices/system/node/node{}/cpulist"
DEVICE = "sys/bus/pci/devices/0000:{}:00.0/numa_node"


def _tree(root, files):
    """Write the files of a machine below an empty root, by their paths; a path that ends with a slash is a folder."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        if name.endswith("/"):
            (root / name).mkdir()
        else:
            (root / name).write_text(text + "\n")
    return root


@pytest.mark.parametrize(
    ("files", "allowed", "expected"),
    [
        # Two sockets whose hyper-threads are numbered after all cores.
        ({NODE.format(0): "0-3,8-11", NODE.format(1): "4-7,12-15"}, range(16), {0: 8, 1: 8}),
        # A container with three CPUs; a node with memory alone (CXL); a service that may use one socket.
        ({NODE.format(0): "0-3", NODE.format(1): "4-7"}, (2, 3, 4), {0: 2, 1: 1}),
        ({NODE.format(0): "0-3", NODE.format(1): ""}, range(4), {0: 4}),
        ({NODE.format(0): "0-3", NODE.format(1): "4-7"}, range(4, 8), {1: 4}),
        # Node numbers with gaps, as on POWER and on sub-NUMA clusters; a kernel without memory nodes.
        ({NODE.format(0): "0", NODE.format(8): "1", NODE.format(16): "2"}, range(3), {0: 1, 8: 1, 16: 1}),
        ({}, range(2), {0: 2}),
    ],
)
def test_nodes_are_those_with_cpus_that_this_process_may_use(tmp_path, files, allowed, expected):
    found = numa.nodes(_tree(tmp_path, files), allowed)
    assert {number: len(node.cpus) for number, node in found.items()} == expected
    assert all(node.share.threads == len(node.cpus) for node in found.values())
    assert set().union(*(node.cpus for node in found.values())) <= set(allowed)


@pytest.mark.parametrize(
    ("files", "nodes"),
    [
        ({"proc/driver/nvidia/gpus/0000:3B:00.0/": "", DEVICE.format("3b"): "1"}, {1}),
        ({"proc/driver/nvidia/gpus/0000:3b:00.0/": "", DEVICE.format("3b"): "-1"}, set()),
        ({"sys/bus/pci/drivers/amdgpu/0000:c1:00.0/": "", DEVICE.format("c1"): "0"}, {0}),
        ({"proc/driver/nvidia/gpus/0000:3b:00.0/": ""}, set()),
    ],
)
def test_the_gpus_nodes_are_those_of_their_pci_addresses(tmp_path, files, nodes):
    """Nodes are told as far as the kernel knows them: virtual machines often write -1."""
    assert numa.gpu_nodes(_tree(tmp_path, files)) == nodes


def _in_thread(work):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


def test_what_the_kernel_refuses_is_reported():
    with pytest.raises(ModelUnavailable, match="NUMA_NODE=3"):
        _in_thread(partial(numa.bind, numa.Node(3, (1_023,), ONE_THREAD)))


def test_the_engine_thread_is_bound_before_it_loads():
    """And no other thread."""
    before = os.sched_getaffinity(0)
    cpu = min(os.sched_getaffinity(0))
    bind = partial(numa.bind, numa.Node(0, (cpu,), ONE_THREAD))
    resolved = replace(feature_list.resolve(settings.load(_env_file=None, model_id="fake")), bind=bind)
    engine = core.build_aligning(resolved, idle_timeout_s=0)

    def load():
        engine.load()
        return os.sched_getaffinity(0)

    assert _in_thread(load) == {cpu}
    assert engine.loaded
    assert os.sched_getaffinity(0) == before


NODES = {n: numa.Node(n, (2 * n, 2 * n + 1), CpuShare(n + 1, f"of node {n}")) for n in (0, 1)}
MACHINE = Capabilities(gpu=False, torch_cuda=False, cpu=CpuShare(7, "all"))


def _resolved(wanted, gpu_nodes=(1,)):
    with mock.patch.multiple(numa, nodes=lambda: NODES, gpu_nodes=lambda: set(gpu_nodes)):
        return plan.resolve(settings.load(_env_file=None, numa_node=wanted), MACHINE, [FEATURE])


@pytest.mark.parametrize(
    ("wanted", "number", "word"),
    [(None, None, "not set"), (0, 0, "as set"), (1, 1, "take its memory first"), ("auto", 1, "GPU")],
)
def test_threads_are_bound_to_the_node_that_is_set(wanted, number, word):
    resolved = _resolved(wanted)
    assert resolved.value("numa_node") == ("" if number is None else str(number))
    assert resolved.is_active("numa_node") is (number is not None)
    assert word in resolved.reason("numa_node")
    assert (resolved.bind.args if resolved.bind else ()) == (() if number is None else (NODES[number],))
    assert resolved.cpu_threads == (7 if number is None else number + 1)


def test_a_node_that_is_not_there_is_refused_with_those_that_are():
    with pytest.raises(plan.PlanError, match=r"NUMA_NODE=2: the nodes .* are 0, 1\."):
        _resolved(2)
    with pytest.raises(plan.PlanError, match="NUMA_NODE=auto: the GPUs are at the nodes 0, 1"):
        _resolved("auto", gpu_nodes=(0, 1))
    assert "no memory node of a GPU" in _resolved("auto", gpu_nodes=()).reason("numa_node")


def test_granian_has_to_be_installed():
    with pytest.raises(plan.PlanError, match="Granian is not installed"):
        plan.resolve(settings.load(_env_file=None, use_granian=True), MACHINE, [FEATURE])
