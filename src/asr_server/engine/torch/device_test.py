"""The choices for a GPU when torch is there. torch.cuda is the border: the tests say what a card would answer."""

import pytest
import torch

from asr_server.core.errors import ModelUnavailable
from asr_server.engine.torch import device

pytestmark = pytest.mark.torch


@pytest.fixture
def card(monkeypatch):
    """A card of some compute capability, under a build with some kernels."""
    monkeypatch.setattr(device, "tune", lambda: None)

    def arrange(capability, architectures=("sm_70", "sm_80", "compute_90"), hip=None, name="NVIDIA Card"):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda name: capability)
        monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: architectures)
        monkeypatch.setattr(torch.version, "hip", hip)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)

    return arrange


@pytest.mark.parametrize(
    ("capability", "hip", "name", "expected"),
    [
        ((7, 5), None, "Tesla T4", torch.float16),
        ((7, 5), None, "NVIDIA GeForce GTX 1660 Ti", torch.float32),
        ((9, 4), "6.4.2", "AMD Instinct MI300X", torch.bfloat16),
    ],
)
def test_the_number_format_follows_the_card(card, capability, hip, name, expected):
    """By its compute capability, its name and its maker; `gpu_test` has the formats of all cards."""
    card(capability, hip=hip, name=name)
    assert device.prepare("cuda", "auto")[0] is expected


@pytest.mark.parametrize(
    ("capability", "architectures", "there"),
    [
        ((7, 0), ["sm_75", "sm_80", "sm_90", "compute_90"], False),
        ((8, 9), ["sm_80", "sm_90"], True),
        ((9, 0), ["sm_80", "compute_80"], True),
        ((9, 0), ["sm_90a"], True),
        ((12, 0), ["sm_80", "sm_90"], False),
        ((8, 0), ["sm_86"], False),
    ],
)
def test_a_build_without_kernels_for_the_card_is_noticed_before_weights_are_read(
    card, capability, architectures, there
):
    """Else the first pass would fail, and every one after it."""
    card(capability, architectures)
    if there:
        device.prepare("cuda", "auto")
        return
    with pytest.raises(ModelUnavailable, match="no kernels for compute capability"):
        device.prepare("cuda", "auto")


def test_a_gpu_that_is_not_there_is_refused_by_its_name():
    """The build and the machine are as they are: torch itself is asked, and no machine has a hundred."""
    with pytest.raises(ModelUnavailable, match=r"DEVICE=cuda:99: \w+"):
        device.prepare("cuda:99", "auto")


def test_without_any_gpu_the_remedy_is_said(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ModelUnavailable, match=r"DEVICE=cuda: .* set DEVICE=cpu"):
        device.prepare("cuda", "auto")
