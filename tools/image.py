"""`make image`: builds the images on any Debian or Ubuntu machine without a container engine, as root.

buildah builds in a chroot. The image that the Dockerfile begins with is taken from buildah's storage; where it is not,
debootstrap makes it from Debian's packages. A build uses this machine's configuration of pip; the image has none of it.
"""

from __future__ import annotations

import ast
import configparser
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TOOLS = ("buildah", "debootstrap", "runc")
NAMES = ("cpu", "slim")


def obstacle() -> str:
    """Return why this machine cannot build and run images; "" if it can."""
    if os.geteuid() != 0:
        return "images are built and run as root only"
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    return f"not installed: {', '.join(missing)} (apt-get install {' '.join(TOOLS)})" if missing else ""


def build(name: str) -> str:
    """Build a target of the Dockerfile; of an earlier build, what has not changed is used. Returns the image's name."""
    image, dockerfile = f"asr-server:{name}", ROOT / "Dockerfile"
    (base,) = set(re.findall(r"^FROM (\S+:\S+)", dockerfile.read_text(encoding="utf-8"), re.MULTILINE))
    command = ["buildah", "bud", "--isolation=chroot", "--format=docker", "--layers", "--pull=never"]
    command += [f"--file={dockerfile}"]
    with tempfile.TemporaryDirectory(prefix="asr-image-") as folder:
        if subprocess.run(["buildah", "inspect", "--type=image", base], capture_output=True, check=False).returncode:
            _make_base(base, Path(folder))
        # A mount leaves an empty file or folder in the image. So the last stage, which installs nothing, has none.
        for options in (
            [f"--target=build-{name}", *_pip_volumes(Path(folder))],
            [f"--target={name}", f"--tag={image}"],
        ):
            subprocess.run([*command, *options, str(ROOT)], check=True, stdout=sys.stderr)
    return image


def described(image: str) -> dict[str, Any]:
    """The image's configuration, as Docker has it, and the sizes of its layers."""
    found = json.loads(output("buildah", "inspect", "--type=image", image))
    layers = json.loads(found["Manifest"])["layers"]
    return {**found["Docker"]["config"], "size_mb": sum(layer["size"] for layer in layers) / 1e6}


def pushed_mb(image: str) -> float:
    """The size of its layers as a registry receives them: compressed with gzip."""
    with tempfile.TemporaryDirectory(prefix="asr-image-") as folder:
        output("buildah", "push", "--quiet", image, f"oci:{folder}")
        return sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file()) / 1e6


def output(*command: str) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def _make_base(base: str, folder: Path) -> None:
    """Python and nothing else, of the Debian release that the name ends with: `python:3.11-slim-bookworm`."""
    _, release = base.rsplit("-", 1)
    print(f"{base} is not in buildah's storage: debootstrap makes it.", flush=True)
    listed = output("apt-get", "indextargets", "--format", "$(CODENAME) $(REPO_URI)", "Created-By: Packages")
    mirrors = [line.split()[1] for line in listed.splitlines() if line.split()[0] == release]
    tree = folder / "tree"
    command = ["debootstrap", "--variant=minbase", "--include=python3-venv,ca-certificates", release, str(tree)]
    subprocess.run([*command, *mirrors[:1]], check=True, stdout=subprocess.DEVNULL)
    for used_once in ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/man", "usr/share/locale"):
        shutil.rmtree(tree / used_once)
        (tree / used_once).mkdir()
    container = output("buildah", "from", "scratch")
    output("buildah", "add", "--quiet", container, str(tree), "/")
    output("buildah", "commit", "--quiet", "--rm", container, base)


def _pip_volumes(folder: Path) -> list[str]:
    """Volumes with pip's configuration, and with the files and folders of this machine that it names."""
    config, named = configparser.RawConfigParser(), list[Path]()
    lines = output(sys.executable, "-m", "pip", "config", "list").splitlines()
    for line in sorted(lines, key=lambda line: line.startswith(":env:")):  # the environment wins
        key, _, literal = line.partition("=")
        section, _, option = key.rpartition(".")
        value = ast.literal_eval(literal)
        config.read_dict({section.replace(":env:", "global"): {option: value}})
        paths = [Path(word.removeprefix("file://")) for word in value.split()]
        # The files of an index are in a folder beside it.
        named += [path.parent if option.endswith("index-url") else path for path in paths]
    with (folder / "pip.conf").open("w", encoding="utf-8") as file:
        config.write(file)
    places = [f"{folder}/pip.conf:/etc/pip.conf:ro"]
    places += [f"{path}:{path}:ro" for path in sorted(set(named)) if path.is_absolute() and path.exists()]
    return [f"--volume={place}" for place in places]


def main(names: list[str]) -> int:
    """Build the named images, or all."""
    if reason := obstacle():
        print(f"make image: {reason}", file=sys.stderr)
        return 1
    for image in [build(name) for name in names or NAMES]:
        print(f"{image}: {described(image)['size_mb']:.0f} MB, compressed {pushed_mb(image):.0f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
