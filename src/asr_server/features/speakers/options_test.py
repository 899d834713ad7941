"""The option `speakers` of a plan."""

import pytest

from asr_server import feature_list
from asr_server.core import settings
from asr_server.engine import plan
from asr_server.engine.capabilities import Capabilities


def _resolved(source):
    machine = Capabilities(gpu=False, torch_cuda=False)
    return feature_list.resolve(settings.load(_env_file=None, speakers=str(source)), machine)


def test_speakers_are_told_apart_by_the_models_of_a_directory_or_of_the_hub(tmp_path):
    """The directory is looked at when the server starts, the hub when speakers are first asked for."""
    for name in ("segmentation.onnx", "embedding.ort"):
        (tmp_path / name).touch()
    for source, where in ((str(tmp_path), "of a directory"), ("owner/voices", "of the hub")):
        resolved = _resolved(source)
        assert (resolved.is_active("speakers"), resolved.value("speakers")) == (True, source)
        assert where in resolved.reason("speakers")


def test_a_directory_without_the_models_of_speakers_refuses(tmp_path):
    (tmp_path / "embedding.onnx").touch()
    for directory, word in (
        (tmp_path / "models", "no such directory, and it is no hub id"),
        (tmp_path, "neither segmentation.onnx, segmentation.ort nor model.onnx"),
    ):
        with pytest.raises(plan.PlanError, match=f"SPEAKERS={directory}: .*{word}"):
            _resolved(directory)
