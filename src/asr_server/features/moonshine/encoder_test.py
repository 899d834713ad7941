"""The encoder's runtime."""

import subprocess
import sys
from pathlib import Path


def test_the_runtime_reports_nothing_to_its_maker(tmp_path: Path) -> None:
    """The runtime's builds keep reports below the home directory until they can send them: after a run there are
    none."""
    code = (
        "import numpy; from asr_server.features.moonshine import aligner, encoder, package;"
        "encoder.MoonshineEncoder(package.locate().encoder).encode(numpy.zeros(16_000, 'f4'))"
    )
    environment = {"PYTHONPATH": ":".join(sys.path), "HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], env=environment, cwd=tmp_path, check=True, timeout=60)
    assert not list(tmp_path.iterdir())
