"""Memory nodes: reads from the kernel's files which ones there are, and binds a thread to the CPUs of one.

The kernel takes memory from the node of the CPU that touches it first, and from other nodes only if that one has none
left. So a thread that is bound to a node's CPUs needs no memory policy.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from asr_server.core.errors import ModelUnavailable
from asr_server.engine.cpu import CpuShare, share

_ROOT = Path("/")


@dataclass(frozen=True, slots=True)
class Node:
    """A memory node with CPUs that this process may use."""

    number: int
    cpus: tuple[int, ...]  # its CPUs that this process may use
    share: CpuShare  # how many threads fit on them


def nodes(root: Path = _ROOT, allowed: Collection[int] | None = None) -> dict[int, Node]:
    """Return the nodes that have CPUs which this process may use, by number, from the files below `root`.

    `allowed`: the CPUs that this process may use, by default its affinity mask. A kernel without memory nodes has only
    node 0.
    """
    mask = set(allowed or os.sched_getaffinity(0))
    places = (root / "sys/devices/system/node").glob("node[0-9]*")
    cpus = {int(place.name.removeprefix("node")): _numbers(_text(place / "cpulist")) & mask for place in places}
    own = sorted((cpus or {0: mask}).items())
    return {number: Node(number, tuple(sorted(used)), share(root, used)) for number, used in own if used}


def gpu_nodes(root: Path = _ROOT) -> set[int]:
    """Return the nodes of the GPUs that NVIDIA's and AMD's drivers run; the kernel writes -1 for an unknown node."""
    patterns = "proc/driver/nvidia/gpus/*:*", "sys/bus/pci/drivers/amdgpu/*:*"
    cards = (card.name.lower() for pattern in patterns for card in root.glob(pattern))
    return {int(_text(root / "sys/bus/pci/devices" / card / "numa_node") or -1) for card in cards} - {-1}


def bind(node: Node) -> None:
    """Run the calling thread, and threads that it starts, only on the node's CPUs. Raises `ModelUnavailable`."""
    try:
        os.sched_setaffinity(0, node.cpus)
    except OSError as error:
        raise ModelUnavailable(f"NUMA_NODE={node.number}: the kernel refused ({error.strerror}); unset it.") from error


def chosen(wanted: int | str | None) -> tuple[Node | None, str, str]:
    """Return the memory node that a value of NUMA_NODE means, None if there is none, the reason, and any conflict."""
    if wanted is None:
        return None, "not set; the kernel places threads and memory", ""
    own, of_gpus = nodes(), sorted(gpu_nodes())
    if wanted == "auto" and not of_gpus:
        return None, "NUMA_NODE=auto: the kernel names no memory node of a GPU", ""
    number, conflict = of_gpus[0] if wanted == "auto" else int(wanted), ""
    if wanted == "auto" and len(of_gpus) > 1:
        conflict = f"NUMA_NODE=auto: the GPUs are at the nodes {', '.join(map(str, of_gpus))}; name one of them."
    elif number not in own:
        conflict = f"NUMA_NODE={number}: the nodes whose CPUs this process may use are {', '.join(map(str, own))}."
    if (node := own.get(number)) is None:
        return None, "refused", conflict
    whose = "the GPU's node" if wanted == "auto" else "as set"
    return node, f"{whose}: the engine's threads run on its {len(node.cpus)} CPUs and take its memory first", conflict


def _text(file: Path) -> str:
    return file.read_text() if file.is_file() else ""


def _numbers(text: str) -> set[int]:
    """Return the numbers of a list in the kernel's notation: `0-3,8`."""
    ranges = (part.partition("-") for part in text.strip().split(",") if part)
    return {number for first, _, last in ranges for number in range(int(first), int(last or first) + 1)}
