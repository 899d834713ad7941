"""What fits a cluster."""

import pytest
from pydantic import ValidationError

from asr_server.core import settings
from asr_server_ray.options import ClusterOptions, conflicts


def _conflicts(options=None, **chosen):
    return list(conflicts(settings.load(_env_file=None, **chosen), options or ClusterOptions()))


@pytest.mark.parametrize(
    ("chosen", "word"),
    [
        ({"gateway_mode": True}, "GATEWAY_MODE"),
        ({"use_granian": True}, "USE_GRANIAN"),
        ({"preload": True}, "PRELOAD"),
        ({"numa_node": 0}, "NUMA_NODE"),
        ({"use_vllm": True}, "USE_VLLM"),
        ({"speech": "Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice"}, "SPEECH"),
        ({"speech_clone_model": "Qwen/Qwen3-TTS-12Hz-0.6B-Base"}, "SPEECH_CLONE_MODEL"),
        ({"port": 0}, "PORT"),
        ({"device": "cuda:1"}, "DEVICE"),
    ],
)
def test_a_setting_without_effect_is_refused(chosen, word):
    """By its name, with what to do."""
    (line,) = _conflicts(**chosen)
    assert word in line


def test_what_fits_is_not_refused():
    """The defaults, and engines that speak without a GPU."""
    assert not _conflicts()
    assert not _conflicts(speech="fake", model_id="fake", device="cuda")
    assert _conflicts(ClusterOptions(gpus=1), device="cpu")


@pytest.mark.parametrize(
    "wrong", [{"replicas": 0}, {"gpus": 2}, {"replicas": 4, "max_replicas": 2}, {"cpus": 0}, {"gpu": 1}]
)
def test_arguments_have_bounds(wrong):
    """And no name is ignored."""
    with pytest.raises(ValidationError):
        ClusterOptions(**wrong)


@pytest.mark.parametrize(("gpus", "shares"), [(0, 1), (1, 1), (0.5, 2), (0.34, 2), (0.25, 4)])
def test_a_gpu_is_divided_by_those_that_fit_on_it(gpus, shares):
    """Each takes one of so many parts of its memory."""
    assert ClusterOptions(gpus=gpus).shares == shares
