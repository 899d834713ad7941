"""The files around the code: workflows, hooks, and make's help."""

import re
import shlex
import subprocess
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


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=_name)
def test_a_workflow_may_only_read_unless_a_job_needs_more(workflow):
    """Each job has a time limit, and only release jobs have write permission."""
    parsed = _yaml(workflow)
    assert parsed["permissions"] == {"contents": "read"}
    assert all(job["timeout-minutes"] <= 360 for job in parsed["jobs"].values())
    assert workflow.stem == "release" or not any("permissions" in job for job in parsed["jobs"].values())


@pytest.mark.parametrize("workflow", TESTING, ids=_name)
def test_a_workflow_runs_make_targets_only(workflow):
    """A contributor can run everything that CI runs. The name of the workflow is among the targets."""
    commands = [shlex.split(step["run"]) for step in _steps(workflow) if "run" in step]
    assert {words[0] for words in commands} == {"make"}
    named = {word for words in commands for word in words[1:] if not word.startswith("-")}
    assert {workflow.stem} <= named <= TARGETS


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
