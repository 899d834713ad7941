"""The report on the times of tests."""

from tools import test_times


def test_the_slowest_ten_are_named_and_those_that_need_a_mark():
    """The slowest comes first."""
    times = [test_times.Time(float(n), f"test_{n}", "it waits" if n > 4 else "") for n in range(12)]
    said = test_times.report(times).splitlines()
    assert [line.split()[-1] for line in said[1:11]] == [f"test_{n}" for n in range(11, 1, -1)]
    assert said[11].startswith("over 3 s without")
    assert [line.split() for line in said[12:]] == [["4.0", "s", "test_4"]]
