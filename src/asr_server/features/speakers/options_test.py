"""The option `speakers` of a plan."""

import pytest

from asr_server import feature_list
from asr_server.core import settings
from asr_server.engine import plan
from asr_server.engine.capabilities import Capabilities

NO_GPU = Capabilities(gpu=False, torch_cuda=False)


def _resolved(machine, **values):
    return feature_list.resolve(settings.load(_env_file=None, **values), machine)


def _option(resolved, name):
    (found,) = (option for option in resolved.options if option.name == name)
    return found


def test_speakers_are_told_apart_by_the_models_of_a_directory_or_of_the_hub(tmp_path):
    """The directory is looked at when the server starts, the hub when speakers are first asked for."""
    for name in ("segmentation.onnx", "embedding.ort"):
        (tmp_path / name).touch()
    for source, where in ((str(tmp_path), "of a directory"), ("owner/voices", "of the hub")):
        option = _option(_resolved(NO_GPU, speakers=source), "speakers")
        assert (option.active, option.value) == (True, source)
        assert where in option.reason


@pytest.mark.parametrize(
    ("files", "word"),
    [
        (None, "no such directory, and it is no hub id"),
        (["embedding.onnx"], "neither segmentation.onnx, segmentation.ort nor model.onnx"),
    ],
)
def test_a_directory_without_the_models_of_speakers_refuses(tmp_path, files, word):
    """The error has the names of the files that are looked for."""
    directory = tmp_path / "models"
    if files is not None:
        directory.mkdir()
        for name in files:
            (directory / name).touch()
    with pytest.raises(plan.PlanError, match=f"SPEAKERS={directory}: .*{word}"):
        _resolved(NO_GPU, speakers=str(directory))
