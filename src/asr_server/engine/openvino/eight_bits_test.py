"""Matrices in 8 bits on disk: read again without being made, and made again where they are damaged."""

import json
import os
import shutil
import time

import numpy as np
import pytest

from asr_server.engine.openvino import eight_bits
from asr_server.engine.weights import Weight

pytestmark = pytest.mark.torch


@pytest.fixture
def checkpoint(tmp_path):
    """Return a directory with weights."""
    directory = tmp_path / "checkpoint"
    directory.mkdir()
    (directory / "model.safetensors").write_bytes(b"1234")
    return directory


@pytest.fixture
def made():
    """Return a function that makes two matrices and counts its calls."""
    calls = []

    def make():
        calls.append(1)
        weights = np.random.default_rng(1).standard_normal((2, 40, 24), np.float32)
        return {str(n): eight_bits.integers([Weight(own, "F32")]) for n, own in enumerate(weights)}, {"matrices": 2}

    make.calls = calls
    return make


def _same(found, expected):
    return all(np.array_equal(a, b) for name in expected for a, b in zip(found[name], expected[name], strict=True))


def test_each_output_has_a_scale_of_its_own(monkeypatch):
    """A large weight costs the other outputs no precision, whatever part of the matrix they are in."""
    monkeypatch.setattr(eight_bits, "_OUTPUTS", 3)
    weight = np.random.default_rng(2).standard_normal((10, 16), np.float32).astype(np.float16)
    weight[4] *= 1000
    weight[7] = 0
    whole, scale = eight_bits.integers([Weight(weight[:6], "F16"), Weight(weight[6:], "F16")])
    assert (whole.dtype, scale.shape) == (np.int8, (10, 1))
    exact = weight.astype(np.float32)
    assert (np.abs(whole * scale - exact).max(1) <= np.abs(exact).max(1) / 250).all()


def test_a_second_load_makes_nothing(tmp_path, checkpoint, made):
    """The second load reads what the first one has written, with its facts."""
    first, second = (eight_bits.kept(tmp_path, checkpoint, made) for _ in range(2))
    assert made.calls == [1]
    assert _same(second.matrices, first.matrices)
    assert first.facts == second.facts == {"matrices": 2}
    assert [file.name for file in (tmp_path / eight_bits.FOLDER).iterdir()] == [eight_bits.key(checkpoint)]


@pytest.mark.parametrize("damage", ["cut", "changed", "no checksum", "empty", "no text"])
def test_damaged_files_are_made_again(tmp_path, checkpoint, made, damage):
    """A file that was cut off by a crash, or that a disk has changed, is not loaded."""
    expected, _ = made()
    eight_bits.kept(tmp_path, checkpoint, made)
    weights, about = (
        tmp_path / eight_bits.FOLDER / eight_bits.key(checkpoint) / name
        for name in ("weights.safetensors", "about.json")
    )
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    if damage == "cut":
        weights.write_bytes(data[:-100])
    elif damage == "changed":
        weights.write_bytes(data)
    elif damage == "no checksum":
        about.write_text(json.dumps({"names": ["0", "1"], "facts": {}}))
    else:
        about.write_text("" if damage == "empty" else "{")
    found = eight_bits.kept(tmp_path, checkpoint, made).matrices
    assert len(made.calls) == 3
    assert _same(found, expected)
    eight_bits.kept(tmp_path, checkpoint, made)
    assert len(made.calls) == 3


def test_what_was_made_of_earlier_weights_goes(tmp_path, checkpoint, made):
    """New weights leave one folder for their checkpoint. Those of others stay; what a crash left an hour ago does
    not."""
    other = tmp_path / "other"
    shutil.copytree(checkpoint, other)
    folder = tmp_path / eight_bits.FOLDER
    eight_bits.kept(tmp_path, other, made)
    eight_bits.kept(tmp_path, checkpoint, made)
    for name, age_s in ((".crashed", 4000), (".being-written", 10)):
        (folder / name).mkdir()
        os.utime(folder / name, (time.time() - age_s,) * 2)
    (checkpoint / "model.safetensors").write_bytes(b"12345")
    eight_bits.kept(tmp_path, checkpoint, made)
    left = {file.name for file in folder.iterdir()}
    assert left == {eight_bits.key(other), eight_bits.key(checkpoint), ".being-written"}


def test_a_disk_that_cannot_be_written_costs_the_next_load_its_time(tmp_path, checkpoint, made, monkeypatch):
    """The matrices are there, and the log says why they are not kept."""
    log = []
    monkeypatch.setattr(eight_bits.logger, "warning", lambda text, **_: log.append(text))
    (tmp_path / eight_bits.FOLDER).write_text("a file where the folder should be")
    found = eight_bits.kept(tmp_path, checkpoint, made)
    assert set(found.matrices) == {"0", "1"}
    assert found.facts == {"matrices": 2}
    assert any("are not kept" in line for line in log)


def test_other_weights_have_another_name(tmp_path):
    """Size or time of a file that changed, and files that are links to others."""
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"1234")
    names = {eight_bits.key(tmp_path)}
    file.write_bytes(b"12345")
    names.add(eight_bits.key(tmp_path))
    (tmp_path / "blob").write_bytes(b"12345")
    file.unlink()
    file.symlink_to("blob")
    names.add(eight_bits.key(tmp_path))
    assert len(names) == 3
    assert eight_bits.key(tmp_path) in names
