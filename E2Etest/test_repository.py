"""The files around the code: workflows, hooks, forms for issues, make's help, and the report of coverage."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")
TARGETS = set(re.search(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)[1].split())


def _yaml(path):
    return yaml.safe_load(path.read_text("utf-8"))


def _steps(workflow):
    return [step for job in _yaml(workflow)["jobs"].values() for step in job["steps"]]


def _name(path):
    return path.name


# They run what every contributor can run; `ci` and `release` have machines and services that others do not.
TESTING = [path for path in WORKFLOWS if path.stem in ("check", "nightly", "test")]


def test_there_are_the_five_workflows():
    """Each is named after its file, which the tests below then read."""
    names = ("check", "ci", "nightly", "release", "test")
    assert {path.stem: _yaml(path)["name"] for path in WORKFLOWS} == {name: name for name in names}


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=_name)
def test_a_workflow_may_only_read_unless_a_job_needs_more(workflow):
    """Each job has a time limit, and only release jobs have write permission."""
    parsed = _yaml(workflow)
    assert parsed["permissions"] == {"contents": "read"}
    assert all(job["timeout-minutes"] <= 360 for job in parsed["jobs"].values())
    assert workflow.stem == "release" or not any("permissions" in job for job in parsed["jobs"].values())


@pytest.mark.parametrize("workflow", TESTING, ids=_name)
def test_a_workflow_runs_make_targets_only_and_takes_no_more_than_it_needs(workflow):
    """A contributor can run everything that CI runs. The name of the workflow is among the targets. One run a branch,
    actions by major version, Python 3.11 with pip's cache."""
    commands = [shlex.split(step["run"]) for step in _steps(workflow) if "run" in step]
    assert {words[0] for words in commands} == {"make"}
    named = {word for words in commands for word in words[1:] if not word.startswith("-")}
    assert {workflow.stem} <= named <= TARGETS
    parsed = _yaml(workflow)
    assert "github.ref" in parsed["concurrency"]["group"]
    assert all(job["runs-on"].startswith("ubuntu-") for job in parsed["jobs"].values())
    used = {step["uses"]: step.get("with", {}) for step in _steps(workflow) if "uses" in step}
    assert all(re.fullmatch(r"actions/[a-z-]+@v[0-9]+", action) for action in used)
    (python,) = (values for action, values in used.items() if action.startswith("actions/setup-python@"))
    assert python["python-version"] == "3.11"
    assert python["cache"] == "pip"
    assert list(ROOT.glob(python["cache-dependency-path"]))


def test_every_target_exists_with_all_it_depends_on():
    """`make` knows how to make each of them; nothing is run."""
    done = subprocess.run(["make", "--dry-run", *TARGETS], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_help_explains_every_target():
    """The comment at the top of the Makefile has a line for each, and for no other."""
    explained = re.findall(r"^# make ([\w-]+) +\w", MAKEFILE.partition(".PHONY")[0], re.MULTILINE)
    assert sorted(explained) == sorted(TARGETS)


@pytest.mark.parametrize(
    "page", ["README.md", "CLAUDE.md", ".github/CONTRIBUTING.md", ".github/pull_request_template.md"]
)
def test_a_page_names_targets_that_exist(page):
    """Every `make something`, in backticks or at the beginning of a line of a shell block."""
    named = set(re.findall(r"(?:`|^)make ([a-z0-9]+)", (ROOT / page).read_text("utf-8"), re.MULTILINE))
    assert named
    assert named <= TARGETS


def test_the_hooks_run_what_make_check_runs():
    """Nothing is fetched; every command is a tool of the virtual environment and is installed."""
    repositories = _yaml(ROOT / ".github" / "pre-commit.yaml")["repos"]
    assert [repository["repo"] for repository in repositories] == ["local"]
    hooks = repositories[0]["hooks"]
    assert {hook["language"] for hook in hooks} == {"system"}
    commands = [shlex.split(hook["entry"]) for hook in hooks]
    for program, *_ in commands:
        assert Path(program).parent == Path(".venv/bin")
        assert Path(sys.executable).with_name(Path(program).name).exists()
    checked = re.findall(r"^\t\$\(VENV\)/bin/(\w+)(?: (format|check))?", MAKEFILE, re.MULTILINE)
    of_hooks = [(Path(words[0]).name, words[1] if len(words) > 1 else "") for words in commands]
    assert of_hooks == checked


@pytest.mark.nightly
def test_the_coverage_of_a_module_is_that_of_its_own_tests(tmp_path):
    """Lines that only another module's test runs count for all tests, not for the own; a module may have no test."""
    package = tmp_path / "toy"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "a.py").write_text(
        "def one():\n    return 1\n\n\ndef two():\n    return 2\n\n\ndef three():\n    return 3\n"
    )
    (package / "b.py").write_text("from toy.a import two\n\n\nasync def four():\n    return two() + two()\n")
    (package / "c.py").write_text("FIVE = 5\n")
    (package / "a_test.py").write_text("from toy.a import one\n\n\ndef test_one():\n    assert one() == 1\n")
    (package / "b_test.py").write_text(
        "import asyncio\n\nfrom toy.b import four\n\n\ndef test_four():\n    assert asyncio.run(four()) == 4\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "tools.coverage_by_module", package],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = re.findall(r"^ +(\S+(?: %)?) +(\d+) % +(\d+)  .*/(\w+)\.py$", done.stdout, re.MULTILINE)
    # a.py: three lines of `def` and one of three bodies by its own test, two bodies by all; nobody imports c.py.
    assert rows == [("67 %", "83", "6", "a"), ("100 %", "100", "3", "b"), ("-", "0", "1", "c")]
