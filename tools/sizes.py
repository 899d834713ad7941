"""Writes what an installation by pip downloads into docs/start/quick-start.md: `python -m tools.sizes`."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from tools import docs_tables

ROOT = Path(__file__).parents[1]
PAGE, NAME = ROOT / "docs" / "start" / "quick-start.md", "sizes"
# Of installations by their extras: the most packages, and megabytes that are downloaded.
LIMITS = {(): (70, 150), ("cpu",): (80, 220), ("demo", "documents"): (85, 360), ("demo", "cpu"): (90, 420)}


def wheel(folder: Path) -> Path:
    """Build the wheel in a folder."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (built,) = folder.iterdir()
    return built


def measured(built: Path, extras: tuple[str, ...], folder: Path) -> tuple[int, float]:
    """Return the packages, and the megabytes, of the wheel with these extras, downloaded into an empty folder."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--dest", str(folder)]
    subprocess.run([*command, f"{built}[{','.join(extras)}]" if extras else str(built)], check=True)
    files = list(folder.iterdir())
    return len(files), sum(file.stat().st_size for file in files) / 1e6


def table() -> str:
    """Return the table."""
    lines = ["| installation | packages | download |", "| --- | --- | --- |"]
    with tempfile.TemporaryDirectory() as made:
        built = wheel(Path(made))
        for extras in LIMITS:
            with tempfile.TemporaryDirectory() as folder:
                packages, megabytes = measured(built, extras, Path(folder))
            name = f"'.[{','.join(extras)}]'" if extras else "."
            lines.append(f"| `pip install {name}` | {packages} | {megabytes:.0f} MB |")
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(docs_tables.replaced(PAGE.read_text(encoding="utf-8"), NAME, table()), encoding="utf-8")
