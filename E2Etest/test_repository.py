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


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_may_only_read_and_runs_what_a_contributor_can_run(workflow):
    """Each job has a time limit. Only release jobs have write permission, and machines and services of their own."""
    parsed = yaml.safe_load(workflow.read_text("utf-8"))
    jobs = parsed["jobs"].values()
    assert parsed["permissions"] == {"contents": "read"}
    assert all(job["timeout-minutes"] <= 360 for job in jobs)
    assert workflow.stem == "release" or not any("permissions" in job for job in jobs)
    if workflow.stem in ("check", "nightly", "test"):
        commands = [shlex.split(step["run"]) for job in jobs for step in job["steps"] if "run" in step]
        assert {words[0] for words in commands} == {"make"}
        named = {word for words in commands for word in words[1:] if not word.startswith("-")}
        assert {workflow.stem} <= named <= TARGETS


def test_every_target_exists_and_is_explained():
    """`make` knows how to make each of them, and the comment at the top of the Makefile has a line for each."""
    done = subprocess.run(["make", "--dry-run", *TARGETS], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
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
