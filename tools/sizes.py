"""Writes the sizes of installations and images into docs/start/quick-start.md: `python -m tools.sizes`, as root.

An image is downloaded compressed; one that is not built yet is built first.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from zipfile import ZipFile

from tools import docs_tables, image

ROOT = Path(__file__).parents[1]
PAGE, NAME = ROOT / "docs" / "start" / "quick-start.md", "sizes"
# Of installations by their extras: the most packages, and megabytes that are downloaded.
LIMITS = {(): (60, 150), ("cpu",): (65, 220), ("demo",): (75, 300), ("demo", "cpu"): (80, 360)}


def wheel(folder: Path, project: Path = ROOT) -> Path:
    """Build the wheel of a project in a folder."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(command, cwd=project, check=True, capture_output=True)
    (built,) = folder.iterdir()
    return built


def measured(built: Path, extras: tuple[str, ...], folder: Path) -> tuple[int, float, float]:
    """Download the wheel with these extras into an empty folder: the packages, and megabytes of wheels and of files."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--dest", str(folder)]
    subprocess.run([*command, f"{built}[{','.join(extras)}]" if extras else str(built)], check=True)
    files = list(folder.iterdir())
    unpacked = sum(entry.file_size for file in files for entry in ZipFile(file).infolist())
    return len(files), sum(file.stat().st_size for file in files) / 1e6, unpacked / 1e6


def table() -> str:
    """Return the table."""
    lines = ["| installation | packages | download | on disk |", "| --- | --- | --- | --- |"]
    with tempfile.TemporaryDirectory() as made:
        built = wheel(Path(made))
        for extras in LIMITS:
            with tempfile.TemporaryDirectory() as folder:
                packages, megabytes, unpacked = measured(built, extras, Path(folder))
            name = f"'.[{','.join(extras)}]'" if extras else "."
            lines.append(f"| `pip install {name}` | {packages} | {megabytes:.0f} MB | {unpacked:.0f} MB |")
    for name in image.NAMES:
        found = image.build(name)
        compressed, size = image.pushed_mb(found), image.described(found)["size_mb"]
        lines.append(f"| `docker build --target {name} .` | | {compressed:.0f} MB | {size:.0f} MB |")
    return "\n".join(lines)


if __name__ == "__main__":
    if reason := image.obstacle():
        sys.exit(f"The sizes of images cannot be measured: {reason}")
    PAGE.write_text(docs_tables.replaced(PAGE.read_text(encoding="utf-8"), NAME, table()), encoding="utf-8")
