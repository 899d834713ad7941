"""`make gpu`: measure with the packages of this environment, or, on a machine that lacks them, with those of `.gpu`.

It imports nothing that has to be installed. The packages are unpacked into a folder of their own, once.
"""

from __future__ import annotations

import os
import sys
import tempfile
import zipfile
from importlib.util import find_spec
from pathlib import Path

TREE = Path(__file__).parents[2]
SITE = TREE / ".gpu" / "site.zip"


def main(arguments: list[str]) -> None:
    """Replace this process by the measurements."""
    paths = [str(TREE / "src"), str(TREE)]
    if find_spec("asr_server") is None or find_spec("qwen_asr") is None:
        if not SITE.is_file():
            sys.exit(f"Nothing was measured: {SITE} is missing; `make gpu-carry` makes it where there is a network.")
        folder = Path(tempfile.gettempdir()) / f"asr-server-gpu-{int(SITE.stat().st_mtime)}"
        if not folder.is_dir():
            with zipfile.ZipFile(SITE) as site:
                site.extractall(folder)
        paths.insert(0, str(folder))
    before = filter(None, [os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((*paths, *before)), "PYTHONUNBUFFERED": "1"}
    os.chdir(TREE)
    os.execve(sys.executable, [sys.executable, "-m", "tools.gpu", *arguments], environment)


if __name__ == "__main__":
    main(sys.argv[1:])
