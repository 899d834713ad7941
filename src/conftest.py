"""For all tests beside the modules: OpenMP as in the server, and how hard hypothesis searches."""

import os

from hypothesis import settings

# OpenMP threads wait as they do in the server, whoever imports torch first.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# A machine that does something else beside makes single examples slow, which is no fault.
settings.register_profile("default", deadline=None)
settings.register_profile("nightly", deadline=None, max_examples=1_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
