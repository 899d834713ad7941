"""For all tests: OpenMP threads wait as they do in the server, whoever imports torch first."""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
