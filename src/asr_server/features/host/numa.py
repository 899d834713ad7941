"""Memory nodes: which there are, by the kernel's files, and binding a thread to one of them."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from asr_server.core.errors import ModelUnavailable
from asr_server.engine.cpu import CpuShare, share
from asr_server.engine.feature import Placement
from asr_server.engine.protocol import Option

_ROOT = Path("/")
# Numbers of the system calls get_mempolicy and set_mempolicy, which the C library does not wrap.
_CALLS = {"x86_64": (239, 238), "aarch64": (236, 237)}
_MPOL_PREFERRED = 1
_NO_POLICY = "and the kernel gives them what they touch first: this process may set no memory policy for it"
_MASK_BITS = 1024  # more nodes than any kernel is built for


@dataclass(frozen=True, slots=True)
class Node:
    """A memory node with CPUs that this process may use."""

    number: int
    cpus: tuple[int, ...]  # those of its CPUs that this process may use
    share: CpuShare  # how many threads fit on them
    prefers_memory: bool  # the kernel lets this process prefer the node's memory


@dataclass(frozen=True, slots=True)
class Numa:
    """The machine's memory nodes."""

    nodes: Mapping[int, Node] = field(default_factory=dict)  # those with CPUs that this process may use, by number
    gpu_nodes: frozenset[int] = frozenset()  # the nodes of the GPUs, as far as the kernel knows them


def probe(root: Path = _ROOT, allowed: Collection[int] | None = None) -> Numa:
    """Look at the files below `root`. `allowed`: the CPUs that this process may use, by default its affinity mask.

    A kernel without memory nodes is one with node 0 alone.
    """
    mask = set(allowed or os.sched_getaffinity(0))
    places = (root / "sys/devices/system/node").glob("node[0-9]*")
    cpus = {int(place.name.removeprefix("node")): mask & _listed(place / "cpulist") for place in places} or {0: mask}
    memory = _memory_nodes(root) if _has_policies() else set()
    return Numa(
        {
            number: Node(number, tuple(sorted(own)), share(root, own), number in memory)
            for number, own in sorted(cpus.items())
            if own
        },
        frozenset(_gpu_nodes(root)),
    )


def bind(node: Node) -> None:
    """Let the calling thread run on the node's CPUs alone and prefer its memory; threads that it starts inherit both.

    Where the node has no memory left, the kernel takes that of others. Raises `ModelUnavailable`.
    """
    try:
        os.sched_setaffinity(0, node.cpus)
        if node.prefers_memory:
            mask = (1 << node.number).to_bytes(_MASK_BITS // 8, sys.byteorder)
            # The kernel reads one bit fewer than it is told.
            _call(_CALLS[platform.machine()][1], _MPOL_PREFERRED, mask, ctypes.c_ulong(_MASK_BITS + 1))
    except OSError as error:
        raise ModelUnavailable(f"NUMA_NODE={node.number}: the kernel refused ({error.strerror}); unset it.") from error


def placement(wanted: int | str | None, numa: Numa) -> Placement:
    """Return the memory node that the engine's threads are bound to for a value of NUMA_NODE."""
    nodes, gpu_nodes = numa.nodes, sorted(numa.gpu_nodes)
    if wanted is None:
        return Placement(Option("numa_node", False, "", "not set; the kernel places threads and memory"))
    if wanted == "auto" and not gpu_nodes:
        return Placement(Option("numa_node", False, "", "NUMA_NODE=auto: the kernel names no memory node of a GPU"))
    number, conflict = gpu_nodes[0] if wanted == "auto" else int(wanted), ""
    if wanted == "auto" and len(gpu_nodes) > 1:
        conflict = f"NUMA_NODE=auto: the GPUs are at the nodes {_numbered(gpu_nodes)}; name one of them."
    elif number not in nodes:
        conflict = f"NUMA_NODE={number}: the nodes whose CPUs this process may use are {_numbered(nodes)}."
    if (node := nodes.get(number)) is None:
        return Placement(Option("numa_node", False, "", "refused"), conflict=conflict)
    whose = "the GPU's node" if wanted == "auto" else "as set"
    memory = "whose memory they prefer" if node.prefers_memory else _NO_POLICY
    reason = f"{whose}: the engine's threads run on its {len(node.cpus)} CPUs, {memory}"
    return Placement(Option("numa_node", True, str(number), reason), node.share, partial(bind, node), conflict)


def _numbered(nodes: Iterable[int]) -> str:
    return ", ".join(map(str, nodes))


def _has_policies() -> bool:
    """True if this process may have a memory policy. Containers often forbid these calls, all of them together."""
    if platform.machine() not in _CALLS:
        return False
    try:
        _call(_CALLS[platform.machine()][0], None, None, ctypes.c_ulong(0), None, ctypes.c_ulong(0))
    except OSError:
        return False
    return True


def _call(number: int, *arguments: object) -> None:
    if ctypes.CDLL(None, use_errno=True).syscall(ctypes.c_long(number), *arguments):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _memory_nodes(root: Path) -> set[int]:
    """Return the nodes whose memory this process may use, which a control group can restrict."""
    file = root / "proc/self/status"
    lines = file.read_text().splitlines() if file.is_file() else []
    return next((_numbers(line.partition(":")[2]) for line in lines if line.startswith("Mems_allowed_list:")), set())


def _gpu_nodes(root: Path) -> Iterator[int]:
    """Yield the nodes of the cards of NVIDIA's and AMD's drivers; the kernel writes -1 where it does not know."""
    for pattern in ("proc/driver/nvidia/gpus/*:*", "sys/bus/pci/drivers/amdgpu/*:*"):
        for card in root.glob(pattern):
            file = root / "sys/bus/pci/devices" / card.name.lower() / "numa_node"
            if file.is_file() and (number := int(file.read_text())) >= 0:
                yield number


def _listed(file: Path) -> set[int]:
    return _numbers(file.read_text()) if file.is_file() else set()


def _numbers(text: str) -> set[int]:
    """Return the numbers of a list as the kernel writes it: `0-3,8`."""
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found
