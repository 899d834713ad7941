"""The files of the wheels. `test_installation.py` installs and runs that of the server."""

import zipfile
from fnmatch import fnmatch
from pathlib import Path

import pytest

from asr_server import __version__
from tools import sizes

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[1]
INFO = f"asr_server-{__version__}.dist-info"
# What is in the package's directory for its tests only.
FOR_TESTS = ("*_test.py", "conftest.py", "*_test.mjs", "package.json", "words.flac", "*.mka")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Path of the wheel."""
    return sizes.wheel(tmp_path_factory.mktemp("wheel"))


def _names(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_the_wheel_holds_the_package_with_its_data_and_without_tests(wheel):
    """Every file below src/asr_server but those for tests: modules, checkpoints, page. No other package."""
    package = ROOT / "src" / "asr_server"
    files = {path for path in package.rglob("*") if path.is_file() and path.parent.name != "__pycache__"}
    needed = {path for path in files if not any(fnmatch(path.name, pattern) for pattern in FOR_TESTS)}
    assert {"model.safetensors", "hello.wav", "index.html", "app.py"} <= {path.name for path in needed}
    expected = {str(path.relative_to(package.parent)) for path in needed}
    assert {name for name in _names(wheel) if not name.startswith(f"{INFO}/")} == expected


@pytest.mark.parametrize(("name", "commands"), [("asr-server-ray", []), ("asr-server-telephony", ["telephony"])])
def test_a_wheel_of_the_extras_holds_its_commands_and_no_tests(name, commands, tmp_path):
    """Each entry point names a module of the wheel; data files are in it."""
    names = _names(wheel := sizes.wheel(tmp_path, ROOT / "extras" / name))
    assert not {file for file in names if any(fnmatch(Path(file).name, pattern) for pattern in FOR_TESTS)}
    assert {Path(file).parts[0] for file in names if ".dist-info/" not in file} == {name.replace("-", "_")}
    with zipfile.ZipFile(wheel) as archive:
        entry_points = "".join(archive.read(file).decode() for file in names if file.endswith("/entry_points.txt"))
    modules = dict(line.split(" = ") for line in entry_points.splitlines() if " = " in line)
    assert ("[asr_server.commands]" in entry_points, sorted(modules)) == (bool(commands), commands)
    assert {f"{module.replace('.', '/')}.py" for module in modules.values()} <= set(names)
