"""Memory nodes, on trees of files as kernels show them, and for real on this machine's first node."""

import ctypes
import json
import os
import platform
import subprocess
import sys
import threading
from dataclasses import replace
from functools import partial

import pytest

from asr_server import feature_list
from asr_server.core import settings
from asr_server.core.errors import ModelUnavailable
from asr_server.engine import plan, registry
from asr_server.engine.capabilities import Capabilities
from asr_server.engine.cpu import ONE_THREAD, CpuShare
from asr_server.engine.feature import Feature
from asr_server.features.host import FEATURE, numa

NODE = "sys/devices/system/node/node{}/cpulist"
DEVICE = "sys/bus/pci/devices/0000:{}:00.0/numa_node"
MEMORY = "Name:\tx\nMems_allowed_list:\t{}"
# Binds a thread to this machine's first node, and reads back what it and a thread that it starts got from the kernel.
READ_BACK = """
import ctypes, json, os, platform, threading
from asr_server.features.host import numa

library, found = ctypes.CDLL(None), {}

def state():
    mode, mask = ctypes.c_int(-1), (ctypes.c_ulong * 16)()
    call = {"x86_64": 239, "aarch64": 236}[platform.machine()]
    arguments = ctypes.byref(mode), mask, ctypes.c_ulong(1024), None, ctypes.c_ulong(0)
    failed = library.syscall(ctypes.c_long(call), *arguments)
    return [sorted(os.sched_getaffinity(0)), mode.value, list(mask)[:2], failed]

def bound():
    numa.bind(numa.probe().nodes[min(numa.probe().nodes)])
    found["bound"] = state()
    inner = threading.Thread(target=lambda: found.update(inherited=state()))
    inner.start()
    inner.join()

thread = threading.Thread(target=bound)
thread.start()
thread.join()
found["beside"] = state()
print(json.dumps(found))
"""


@pytest.fixture
def tree(tmp_path):
    """Writes the files of a machine below an empty root, by their paths; a path that ends with a slash is a folder."""

    def made(files):
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            if name.endswith("/"):
                (tmp_path / name).mkdir()
            else:
                (tmp_path / name).write_text(text + "\n")
        return tmp_path

    return made


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
def test_nodes_are_those_with_cpus_that_this_process_may_use(tree, files, allowed, expected):
    """A node has one thread for each of its cores."""
    found = numa.probe(tree(files), allowed).nodes
    assert {number: len(node.cpus) for number, node in found.items()} == expected
    assert all(node.share.threads == len(node.cpus) for node in found.values())
    assert set().union(*(node.cpus for node in found.values())) <= set(allowed)


def test_memory_is_preferred_where_the_control_group_has_it(tree):
    """A policy for a node that it has not would be refused by the kernel."""
    files = {NODE.format(0): "0", NODE.format(1): "1", "proc/self/status": MEMORY.format("1,3-4")}
    found = numa.probe(tree(files), range(2)).nodes
    assert [node.prefers_memory for node in found.values()] == [False, _policies_are_allowed()]


@pytest.mark.parametrize(
    ("files", "nodes"),
    [
        ({"proc/driver/nvidia/gpus/0000:3B:00.0/": "", DEVICE.format("3b"): "1"}, {1}),
        ({"proc/driver/nvidia/gpus/0000:3b:00.0/": "", DEVICE.format("3b"): "-1"}, set()),
        ({"sys/bus/pci/drivers/amdgpu/0000:c1:00.0/": "", DEVICE.format("c1"): "0"}, {0}),
        (
            {f"proc/driver/nvidia/gpus/0000:{n}a:00.0/": "" for n in range(2)}
            | {DEVICE.format(f"{n}a"): str(n) for n in range(2)},
            {0, 1},
        ),
        ({"proc/driver/nvidia/gpus/0000:3b:00.0/": ""}, set()),
        ({}, set()),
    ],
)
def test_the_gpus_nodes_are_those_of_their_pci_addresses(tree, files, nodes):
    """Nodes are told as far as the kernel knows them: virtual machines often write -1."""
    assert numa.probe(tree(files), (0,)).gpu_nodes == nodes


def _policies_are_allowed():
    """Asked of the kernel without the code that is tested."""
    call = {"x86_64": 239, "aarch64": 236}.get(platform.machine())
    arguments = (None, None, ctypes.c_ulong(0), None, ctypes.c_ulong(0))
    return call is not None and ctypes.CDLL(None).syscall(ctypes.c_long(call), *arguments) == 0


def test_the_kernel_binds_the_thread_and_those_that_it_starts():
    """Read back by system calls in a child process; other threads stay as they are."""
    done = subprocess.run([sys.executable, "-c", READ_BACK], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    nodes = numa.probe().nodes
    first = nodes[min(nodes)]
    policy = [1, [1 << first.number, 0], 0] if first.prefers_memory else [0, [0, 0], 0]
    assert found["bound"] == found["inherited"] == [list(first.cpus), *policy]
    assert found["beside"] == [sorted(os.sched_getaffinity(0)), 0, [0, 0], 0]
    assert first.prefers_memory is _policies_are_allowed()


def test_what_the_kernel_refuses_is_reported():
    """CPUs that are gone since the start."""
    gone = numa.Node(3, (1_023,), ONE_THREAD, prefers_memory=False)
    errors = []

    def bind():
        try:
            numa.bind(gone)
        except ModelUnavailable as error:
            errors.append(error.message)

    thread = threading.Thread(target=bind)
    thread.start()
    thread.join()
    assert errors
    assert "NUMA_NODE=3" in errors[0]


def test_the_engine_thread_is_bound_before_it_loads():
    """The engine that the registry builds for a plan with a node binds its thread: here to one CPU of the first
    node."""
    cpu = min(os.sched_getaffinity(0))
    node = numa.Node(0, (cpu,), ONE_THREAD, prefers_memory=False)
    values = settings.load(_env_file=None, model_id="fake")
    resolved = replace(feature_list.resolve(values), bind=partial(numa.bind, node))
    engine = registry.build_aligning(resolved, idle_timeout_s=0)
    found = []

    def load():
        engine.load()
        found.append(os.sched_getaffinity(0))

    thread = threading.Thread(target=load)
    thread.start()
    thread.join()
    assert found == [{cpu}]
    assert engine.loaded


NODES = {n: numa.Node(n, (2 * n, 2 * n + 1), CpuShare(n + 1, f"of node {n}"), prefers_memory=n == 0) for n in (0, 1)}
TWO_NODES = numa.Numa(NODES, gpu_nodes=frozenset([1]))
MACHINE = Capabilities(gpu=False, torch_cuda=False, cpu=CpuShare(7, "all"))


def _resolved(wanted, nodes=TWO_NODES):
    """The plan on a machine with these nodes."""
    feature = Feature("host", placement=lambda asked: numa.placement(asked.settings.numa_node, nodes))
    return plan.resolve(settings.load(_env_file=None, numa_node=wanted), MACHINE, [feature])


@pytest.mark.parametrize(
    ("wanted", "number", "word"),
    [(None, None, "not set"), (0, 0, "prefer"), (1, 1, "no memory policy"), ("auto", 1, "GPU")],
)
def test_threads_are_bound_to_the_node_that_is_set(wanted, number, word):
    """The number of threads follows from the node; `auto` is the GPU's. The plan says what becomes of the memory."""
    resolved = _resolved(wanted)
    assert resolved.value("numa_node") == ("" if number is None else str(number))
    assert resolved.is_active("numa_node") is (number is not None)
    assert word in resolved.reason("numa_node")
    assert (resolved.bind.args if resolved.bind else ()) == (() if number is None else (NODES[number],))
    assert resolved.cpu_threads == (7 if number is None else number + 1)


def test_a_node_that_is_not_there_is_refused_with_those_that_are():
    """The plan is refused also where `auto` would have to choose; without a GPU the option is inactive with the
    reason."""
    with pytest.raises(plan.PlanError, match=r"NUMA_NODE=2: the nodes .* are 0, 1\."):
        _resolved(2)
    with pytest.raises(plan.PlanError, match="NUMA_NODE=auto: the GPUs are at the nodes 0, 1"):
        _resolved("auto", replace(TWO_NODES, gpu_nodes=frozenset([0, 1])))
    assert "no memory node of a GPU" in _resolved("auto", replace(TWO_NODES, gpu_nodes=frozenset())).reason("numa_node")


def test_granian_is_active_where_it_is_installed():
    """Otherwise the plan is refused."""
    chosen = settings.load(_env_file=None, use_granian=True)
    assert plan.resolve(chosen, replace(MACHINE, packages=frozenset(["granian"])), [FEATURE]).is_active("use_granian")
    with pytest.raises(plan.PlanError, match="Granian is not installed"):
        plan.resolve(chosen, MACHINE, [FEATURE])
