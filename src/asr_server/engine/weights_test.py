"""Weights that are read from files, against the library of their format."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from asr_server.engine.weights import StoredWeights

pytestmark = pytest.mark.torch


@pytest.fixture
def tensors():
    values = torch.randn(3, 40, 8, generator=torch.Generator().manual_seed(1))
    formats = (torch.float32, torch.float16, torch.bfloat16)
    made = {f"model.{n}.weight": value.to(kind) for n, (value, kind) in enumerate(zip(values, formats, strict=True))}
    return {**made, "whole": torch.arange(-128, 128).to(torch.int8), "empty": torch.zeros(0, 4)}


def test_numbers_are_those_of_the_file(tensors, tmp_path):
    """All of them, a part, and rows by their numbers; in several files, under the names that were asked for."""
    names = sorted(tensors)
    for number, some in enumerate((names[:2], names[2:])):
        save_file({name: tensors[name] for name in some}, tmp_path / f"model-{number}.safetensors")
    found = StoredWeights(tmp_path, {r"^model\.": "thinker."})
    assert set(found) == {name.replace("model.", "thinker.") for name in names}
    for name, tensor in tensors.items():
        weight, exact = found[name.replace("model.", "thinker.")], tensor.float().numpy()
        assert weight.shape == exact.shape
        np.testing.assert_array_equal(weight.floats(), exact)
    weight, exact = found["thinker.2.weight"], tensors["model.2.weight"].float().numpy()
    np.testing.assert_array_equal(weight.floats(5, 9), exact[5:9])
    np.testing.assert_array_equal(weight.rows(np.array([7, 7, 0])), exact[[7, 7, 0]])


@pytest.mark.parametrize("damage", ["cut", "no header", "a list", "endless header", "beyond the end", "empty"])
def test_damaged_files_are_refused(tensors, tmp_path, damage):
    """Nothing is read beyond the end of a file."""
    file = tmp_path / "model.safetensors"
    save_file(tensors, file)
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    header["model.0.weight"]["data_offsets"] = [len(data), len(data) + 4 * 320]
    moved = json.dumps(header).encode()
    file.write_bytes(
        {
            "cut": data[:-16],
            "no header": data[:8] + b"{" * length,
            "a list": data[:8] + b"[]".ljust(length) + data[8 + length :],
            "endless header": (1 << 40).to_bytes(8, "little") + data[8:],
            "beyond the end": len(moved).to_bytes(8, "little") + moved + data[8 + length :],
            "empty": b"",
        }[damage]
    )
    with pytest.raises(ValueError, match=r"is damaged|Expecting|empty file"):
        StoredWeights(tmp_path)
