"""Finding the model's files, and what is said when they are not as they were installed."""

import shutil
from importlib import metadata
from unittest.mock import Mock

import pytest

from asr_server.core.errors import ModelUnavailable
from asr_server.features.moonshine import package


@pytest.fixture
def copy(tmp_path, monkeypatch):
    """A copy of the installed distribution, as the only one that is found."""
    for file in metadata.distribution(package.DISTRIBUTION).files:
        if any(part.endswith(("tiny-en", "dist-info")) for part in file.parts):
            (tmp_path / file.parent).mkdir(parents=True, exist_ok=True)
            shutil.copy(file.locate(), tmp_path / file)
    copied = metadata.Distribution.at(next(tmp_path.glob("*.dist-info")))
    monkeypatch.setattr(metadata, "files", lambda name: copied.files)
    return tmp_path / "moonshine_voice/assets/tiny-en"


@pytest.mark.parametrize("name", ["encoder_model.ort", "decoder_model_merged.ort", "tokenizer.bin"])
def test_one_changed_byte_is_found(copy, name):
    content = bytearray((copy / name).read_bytes())
    content[len(content) // 2] ^= 1
    (copy / name).write_bytes(content)
    with pytest.raises(ModelUnavailable, match=f"damaged: {name} is not the file.*pip install --force-reinstall"):
        package.locate()


def test_a_missing_file_is_named(copy):
    (copy / "tokenizer.bin").unlink()
    with pytest.raises(ModelUnavailable, match=r"tokenizer\.bin cannot be read"):
        package.locate()


@pytest.mark.parametrize("how", [{"side_effect": metadata.PackageNotFoundError}, {"return_value": "0.1.5"}])
def test_without_the_distribution_or_with_a_later_one_the_way_out_is_said(monkeypatch, how):
    """Later ones contain no weights."""
    monkeypatch.setattr(metadata, "version", Mock(**how))
    with pytest.raises(ModelUnavailable, match=r"not installed: pip install .*moonshine-voice==0\.1\.0.*MODEL_ID=demo"):
        package.locate()
