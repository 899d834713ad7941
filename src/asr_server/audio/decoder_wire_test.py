"""The limits of a file by its size."""

from asr_server.audio.decoder_wire import DecodeLimits

MIB = 1024 * 1024
LIMITS = DecodeLimits(max_audio_s=7200.0)


def test_a_small_file_cannot_make_a_large_child():
    """The limits of a file grow with its size, from 35 MiB and 2 s of CPU time for the first block of 320 kB."""
    small, usual, large = (LIMITS.of_file(size) for size in (320_000, 13 * MIB, 200 * MIB))
    assert small.memory_bytes < 35 * MIB
    assert usual.memory_bytes == 136 * MIB
    assert 2.0 < small.first_cpu_s < 2.1
    for name in ("memory_bytes", "cpu_s", "first_cpu_s", "block_cpu_s"):
        assert getattr(small, name) < getattr(usual, name) < getattr(large, name), name


def test_any_file_fits_into_the_part_that_newcomers_have():
    """A caller without a file under way so never waits for the memory of another."""
    largest = LIMITS.of_file(10**12)
    assert largest.memory_bytes + LIMITS.shared_memory_bytes <= LIMITS.memory_bytes
    assert largest.cpu_s == LIMITS.cpu_s
