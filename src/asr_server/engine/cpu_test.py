"""The share of the processor, on trees of files as kernels show them."""

import pytest

from asr_server.engine import cpu

V1 = "sys/fs/cgroup/cpu,cpuacct"
V1_GROUPS = "12:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n0::/system.slice"


def _first_version(folder, quota_us, period_us):
    return {f"{folder}/cpu.cfs_quota_us": quota_us, f"{folder}/cpu.cfs_period_us": period_us}


@pytest.fixture
def tree(tmp_path):

    def made(files):
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text + "\n")
        return tmp_path

    return made


@pytest.mark.parametrize(
    ("files", "threads"),
    [
        ({}, 4),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "max 100000"}, 4),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "350000 100000"}, 3),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "50000 100000"}, 1),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "1600000 100000"}, 4),
        # A service below a slice with the quota; a container that sees its own group as the root.
        ({"proc/self/cgroup": "0::/a.slice/b", "sys/fs/cgroup/a.slice/cpu.max": "200000 100000"}, 2),
        ({"proc/self/cgroup": "0::/../../host/name", "sys/fs/cgroup/cpu.max": "100000 100000"}, 1),
        # The first version: mounted as both controllers or one, the group's files below it or in its place.
        (
            {
                "proc/self/cgroup": V1_GROUPS,
                **_first_version(f"{V1}/docker/abc", "300000", "100000"),
                **_first_version(V1, "-1", "100000"),
            },
            3,
        ),
        ({"proc/self/cgroup": V1_GROUPS, **_first_version("sys/fs/cgroup/cpu", "50000", "25000")}, 2),
    ],
)
def test_threads_follow_cores_and_quota(tree, files, threads):
    """A container with two CPUs of sixty-four has two threads, wherever its kernel writes that."""
    found = cpu.share(tree(files), allowed=range(4))
    assert found.threads == threads
    assert ("quota" in found.reason) == (threads < 4)


def test_threads_of_one_core_count_once(tree):
    """Two of four logical CPUs are a core of their own; of the other core this process may use one half."""
    topology = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    root = tree({topology.format(n): "0-1" if n < 2 else "2-3" for n in range(4)})
    assert cpu.share(root, allowed=range(4)).threads == 2
    assert cpu.share(root, allowed=(1, 2)).threads == 2
    assert cpu.share(root, allowed=(0, 1)).threads == 1


def test_flags_are_the_kernels(tree):
    """Flags are read from the first processor; a kernel that lists none, as on ARM, has none."""
    text = "processor\t: 0\nflags\t\t: fpu avx512_vnni amx_int8\n\nprocessor\t: 1\nflags\t\t: fpu"
    assert cpu.flags(tree({"proc/cpuinfo": text})) == {"fpu", "avx512_vnni", "amx_int8"}
    assert cpu.flags(tree({"proc/cpuinfo": "Features : asimd"})) == frozenset()
