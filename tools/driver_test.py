"""The driver is checked before torch is downloaded."""

from asr_server.engine.gpu import Driver, Gpus
from tools import driver


def test_an_old_driver_is_refused_with_the_ways_out():
    """The text names the driver, the one that is needed, and the variable for another index."""
    text = driver.problem(Gpus(Driver.NVIDIA, (535, 54, 3)))
    assert all(word in text for word in ("535.54.3", "CUDA 13.0", "580", "TORCH_INDEX"))


def test_a_new_driver_and_an_unknown_one_are_not():
    for gpus in (Gpus(Driver.NVIDIA, (580, 65, 6)), Gpus(Driver.WSL), Gpus()):
        assert driver.problem(gpus) == ""
