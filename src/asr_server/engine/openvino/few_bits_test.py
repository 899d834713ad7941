"""Matrices in 8 bits on disk: read again without being made, and made again where they are damaged."""

import json
import os
import shutil
import time
from unittest.mock import Mock

import numpy as np
import pytest

from asr_server.engine.openvino import few_bits
from asr_server.engine.weights import Weight

pytestmark = pytest.mark.torch


@pytest.fixture
def checkpoint(tmp_path):
    directory = tmp_path / "checkpoint"
    directory.mkdir()
    (directory / "model.safetensors").write_bytes(b"1234")
    return directory


@pytest.fixture
def made():
    def make():
        weights = np.random.default_rng(1).standard_normal((2, 40, 24), np.float32)
        return {str(n): few_bits.integers(own) for n, own in enumerate(weights)}, {"matrices": 2}

    return Mock(side_effect=make)


def _same(found, expected):
    return all(np.array_equal(a, b) for name in expected for a, b in zip(found[name], expected[name], strict=True))


def test_four_bits_are_off_by_half_a_step_of_their_group(monkeypatch):
    """Numbers come back from pairs, group by group, and a large weight costs its own group precision alone."""
    monkeypatch.setattr(few_bits, "OUTPUTS", 3)
    exact = np.random.default_rng(3).standard_normal((7, 192), np.float32)
    exact[2, 70] *= 100
    exact[5, :64] = 0
    whole, scale = few_bits.converted([Weight(exact[:4], "F32"), Weight(exact[4:], "F32")], few_bits.halves)
    assert (whole.dtype, whole.shape, scale.shape) == (np.uint8, (7, 96), (7, 3))
    numbers = np.stack([whole & 15, whole >> 4], axis=-1).reshape(7, 192).astype(np.int8)
    numbers[numbers > 7] -= 16
    found = (numbers.reshape(7, 3, 64) * scale[..., None]).reshape(7, 192)
    largest = np.abs(exact).reshape(7, 3, 64).max(2).repeat(64, axis=1)
    assert (np.abs(found - exact) <= largest / 7).all()
    off, norm = (np.linalg.norm(rows.reshape(-1, 64), axis=1) for rows in (found - exact, exact))
    usual = np.arange(21) != 2 * 3 + 1  # not the group of the large weight
    assert (off[usual] <= 0.15 * norm[usual]).all()


def test_a_second_load_makes_nothing(tmp_path, checkpoint, made):
    """A setting that is changed back finds what was made before. Without a state directory memory holds it."""
    first, _, second, _ = (few_bits.kept(tmp_path, checkpoint, made, bits) for bits in (8, 4, 8, 4))
    assert made.call_count == 2
    assert _same(second.matrices, first.matrices)
    assert first.facts == second.facts == {"matrices": 2}
    before = sorted(tmp_path.rglob("*"))
    assert few_bits.key(checkpoint) in {path.name for path in before}
    assert set(few_bits.kept(None, checkpoint, made).matrices) == {"0", "1"}
    assert made.call_count == 3
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("damage", ["cut", "changed", "no checksum", "empty", "no text"])
def test_damaged_files_are_made_again(tmp_path, checkpoint, made, damage):
    """A file that was cut off by a crash, or that a disk has changed, is not loaded."""
    expected, _ = made()
    few_bits.kept(tmp_path, checkpoint, made)
    weights, about = (
        tmp_path / few_bits.FOLDER / few_bits.key(checkpoint) / name for name in ("weights.safetensors", "about.json")
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
    found = few_bits.kept(tmp_path, checkpoint, made).matrices
    assert made.call_count == 3
    assert _same(found, expected)
    few_bits.kept(tmp_path, checkpoint, made)
    assert made.call_count == 3


def test_what_was_made_of_earlier_weights_goes(tmp_path, checkpoint, made):
    """Each checkpoint keeps one folder. The remains of a crash are removed after an hour."""
    other = tmp_path / "other"
    shutil.copytree(checkpoint, other)
    folder = tmp_path / few_bits.FOLDER
    few_bits.kept(tmp_path, other, made)
    few_bits.kept(tmp_path, checkpoint, made)
    for name, age_s in ((".crashed", 4000), (".being-written", 10)):
        (folder / name).mkdir()
        os.utime(folder / name, (time.time() - age_s,) * 2)
    (checkpoint / "model.safetensors").write_bytes(b"12345")
    few_bits.kept(tmp_path, checkpoint, made)
    left = {file.name for file in folder.iterdir()}
    assert left == {few_bits.key(other), few_bits.key(checkpoint), ".being-written"}


def test_a_disk_that_cannot_be_written_costs_the_next_load_its_time(tmp_path, checkpoint, made, monkeypatch):
    """The matrices are there, and the log says why they are not kept."""
    log = []
    monkeypatch.setattr(few_bits.logger, "warning", lambda text, **_: log.append(text))
    (tmp_path / few_bits.FOLDER).write_text("a file where the folder should be")
    found = few_bits.kept(tmp_path, checkpoint, made)
    assert set(found.matrices) == {"0", "1"}
    assert found.facts == {"matrices": 2}
    assert any("are not kept" in line for line in log)


def test_other_weights_have_another_name(tmp_path):
    """Size or time of a file that changed, and files that are links to others."""
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"1234")
    names = {few_bits.key(tmp_path)}
    file.write_bytes(b"12345")
    names.add(few_bits.key(tmp_path))
    (tmp_path / "blob").write_bytes(b"12345")
    file.unlink()
    file.symlink_to("blob")
    names.add(few_bits.key(tmp_path))
    assert len(names) == 3
    assert few_bits.key(tmp_path) in names
