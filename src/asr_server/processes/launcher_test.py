"""The limits of the server's process."""

import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
soft, hard = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
from asr_server.processes.launcher import raise_file_limit
raise_file_limit()
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize(("soft", "hard", "raised"), [(64, 500, 500), (300, 300, 300)])
def test_as_many_files_may_be_open_as_the_system_allows(soft, hard, raised):
    """A connection is one of them. Under systemd a service has 1,024 at first, and 524,288 if it asks."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(soft), str(hard)], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [str(raised), str(hard)]
