"""Pace as people read it; how bars look on a terminal is tested in E2Etest/cli."""

from asr_server.cli.progress import remaining_text, speed_text


def test_speed_and_remaining_time():
    """Nothing is said before anything is known; headers may claim less than there is."""
    for done_s, total_s, elapsed_s, speed, left in [
        (0, 60, 5, "", ""),
        (30, None, 3, "10.0x", ""),
        (60, 7260, 60, "1.0x", "2:00:00 left"),
        (61, 60, 6, "10.2x", "0:00 left"),
    ]:
        assert (speed_text(done_s, elapsed_s), remaining_text(done_s, total_s, elapsed_s)) == (speed, left)
