"""`asr-server doctor`. E2Etest/cli/test_models.py has the whole command."""

import json
import re
from importlib import metadata

import pytest

from asr_server.cli.main import main


@pytest.mark.parametrize(
    ("package", "mark", "command"),
    [("tokenizers", "off", "'.[cpu]'"), ("torch", "off", "'.[gpu]'"), ("onnxruntime", "FAIL", ".")],
)
def test_a_missing_package_has_the_command_that_installs_it(package, mark, command, capsys, monkeypatch):
    """Only one that the server itself needs is a failure. The others have their versions."""
    monkeypatch.setenv("MODEL_ID", "demo")
    there = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: there("no-such-package" if name == package else name))
    main(["doctor", "--quick", "--json"])
    found = {one["subject"]: (one["mark"], one["text"]) for one in json.loads(capsys.readouterr().out)["software"]}
    assert found[package][0] == mark
    assert found[package][1].endswith(f"pip install {command}")
    assert found["av"] == ("ok", there("av"))


def test_the_machine_is_described(capsys, monkeypatch):
    monkeypatch.setenv("MODEL_ID", "demo")
    main(["doctor", "--quick", "--json"])
    found = {one["subject"]: one["text"] for one in json.loads(capsys.readouterr().out)["machine"]}
    assert list(found) == ["cpu", "memory", "gpu"]
    assert re.fullmatch(r"\d+\.\d GiB, \d+\.\d free", found["memory"])
