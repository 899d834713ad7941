"""Free memory, in a container and outside."""

import pytest

from asr_server.engine import memory

KIB = 1024


@pytest.mark.parametrize(("limit", "free"), [(1000 * KIB, 300 * KIB), (500 * KIB, 0), ("max", None), (None, None)])
def test_a_containers_limit_counts_and_its_file_cache_does_not(tmp_path, monkeypatch, limit, free):
    """The container uses 900 KiB, and 200 of these are cached files. `max` and a missing file mean no limit."""
    if limit is not None:
        (tmp_path / "memory.max").write_text(f"{limit}\n")
    (tmp_path / "memory.current").write_text(f"{900 * KIB}\n")
    stat = f"anon {700 * KIB}\nfile {200 * KIB}\nactive_file {150 * KIB}\ninactive_file {50 * KIB}\n"
    (tmp_path / "memory.stat").write_text(stat)
    monkeypatch.setattr(memory, "CGROUP", tmp_path)
    assert memory.free_bytes() == free or (free is None and memory.free_bytes() > 1024 * KIB)
