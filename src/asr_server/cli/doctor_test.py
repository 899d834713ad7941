"""`asr-server doctor`. E2Etest/cli/test_models.py runs it as a process."""

import json
import os
from importlib import metadata

import pytest

from asr_server.cli.main import main


def _findings(capsys):
    main(["doctor", "--quick", "--json"])
    report = json.loads(capsys.readouterr().out)
    return {found["subject"]: (found["mark"], found["text"]) for found in report["machine"] + report["software"]}


def test_the_figures_are_those_of_this_machine(capsys, monkeypatch):
    """Cores of this process, memory that is there, the installed libraries."""
    monkeypatch.setenv("MODEL_ID", "demo")
    found = _findings(capsys)
    assert found["cpu"][1].startswith(f"{len(os.sched_getaffinity(0))} cores, ")
    total_gib, free_gib = (float(text.split()[0]) for text in found["memory"][1].split(", "))
    assert 0 < free_gib <= total_gib
    assert found["onnxruntime"] == ("ok", metadata.version("onnxruntime"))


@pytest.mark.parametrize(
    ("package", "mark", "command"),
    [("tokenizers", "off", "'.[cpu]'"), ("torch", "off", "'.[gpu]'"), ("onnxruntime", "FAIL", ".")],
)
def test_a_missing_package_has_the_command_that_installs_it(package, mark, command, capsys, monkeypatch):
    """Only one that the server itself needs is a failure."""
    monkeypatch.setenv("MODEL_ID", "demo")
    there = metadata.version

    def version(name):
        if name == package:
            raise metadata.PackageNotFoundError
        return there(name)

    monkeypatch.setattr(metadata, "version", version)
    found = _findings(capsys)
    assert found[package][0] == mark
    assert found[package][1].endswith(f"pip install {command}")
