"""The models in the installed package."""

import shutil
from importlib import metadata
from types import SimpleNamespace

import pytest

from asr_server.features.speakers.diarization import embedded_weights, model_source
from asr_server.features.speakers.diarization.embedded_weights import WeightsError


@pytest.fixture
def library(monkeypatch, tmp_path):
    installed = metadata.distribution(model_source.DISTRIBUTION).locate_file(embedded_weights.LIBRARY)
    copy = tmp_path / embedded_weights.LIBRARY
    copy.parent.mkdir()
    shutil.copy(installed, copy)

    elsewhere = SimpleNamespace(version=model_source.VERSION, locate_file=tmp_path.joinpath)
    monkeypatch.setattr(embedded_weights.metadata, "distribution", lambda _: elsewhere)
    return copy


def flip(file):
    file.seek(embedded_weights.FIRST_BYTE[embedded_weights.platform.machine()] + 5_000_000)
    byte = file.read(1)
    file.seek(-1, 1)
    file.write(bytes([byte[0] ^ 1]))


@pytest.mark.parametrize("damage", [flip, lambda file: file.truncate(1_000_000)])
def test_a_changed_byte_is_found(library, damage):
    """Anywhere in what is used. The message says how to mend it."""
    with library.open("r+b") as file:
        damage(file)
    with pytest.raises(WeightsError, match=r"is not that of .*: pip install --force-reinstall"):
        embedded_weights.read()


def test_a_library_that_is_missing_or_of_another_version(library, monkeypatch):
    library.unlink()
    with pytest.raises(WeightsError, match="cannot be read"):
        embedded_weights.read()
    monkeypatch.setattr(metadata, "version", lambda name: "9.9.9")
    with pytest.raises(WeightsError, match=r"moonshine-voice==0\.1\.0 is not installed"):
        embedded_weights.read()


@pytest.mark.parametrize(("system", "machine"), [("darwin", "x86_64"), ("linux", "riscv64")])
def test_other_machines_are_refused_by_name(monkeypatch, system, machine):
    monkeypatch.setattr(model_source.sys, "platform", system)
    monkeypatch.setattr(model_source.platform, "machine", lambda: machine)
    assert "Linux on x86-64 and arm64 only" in model_source.missing_package()
