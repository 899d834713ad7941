"""Free memory, in a container and outside."""

import pytest

from asr_server.engine import memory

KIB = 1024


@pytest.fixture
def container(tmp_path, monkeypatch):
    """Write the kernel's files of a container with that limit, 900 KiB of which are used, 200 of them for cached
    files."""

    def limited(limit):
        (tmp_path / "memory.max").write_text(f"{limit}\n")
        (tmp_path / "memory.current").write_text(f"{900 * KIB}\n")
        stat = f"anon {700 * KIB}\nfile {200 * KIB}\nactive_file {150 * KIB}\ninactive_file {50 * KIB}\n"
        (tmp_path / "memory.stat").write_text(stat)
        monkeypatch.setattr(memory, "CGROUP", tmp_path)

    return limited


def test_a_containers_limit_counts_and_its_file_cache_does_not(container):
    """Memory of the machine beyond the limit would be planned for and never be there: the process would be killed."""
    container(1000 * KIB)
    assert memory.free_bytes() == 300 * KIB
    container(500 * KIB)
    assert memory.free_bytes() == 0


def test_without_a_limit_it_is_what_the_kernel_says(container, tmp_path, monkeypatch):
    """`max`, or no such file, is no limit."""
    container("max")
    assert memory.free_bytes() > 1024 * KIB
    monkeypatch.setattr(memory, "CGROUP", tmp_path / "none")
    assert memory.free_bytes() > 1024 * KIB
