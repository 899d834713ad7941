"""Fixtures for tests of the voices."""

import json
import shutil

import pytest

from asr_server.features.speech_output.engines.piper import voice
from asr_server.features.speech_output.engines.piper.network import PiperNetwork


@pytest.fixture(scope="session")
def packaged():
    """The packaged voice."""
    return voice.read(voice.packaged())


@pytest.fixture(scope="session")
def network(packaged):
    """Return the network of the packaged voice, loaded."""
    return PiperNetwork(packaged)


@pytest.fixture
def voice_file(tmp_path):
    """A function that writes a voice whose configuration differs from the packaged one, and returns its file."""

    def write(name="de_DE-karl-low", network=b"", card="", **changes):
        directory = tmp_path / name
        directory.mkdir()
        config = json.loads(voice.packaged().with_name(voice.packaged().name + ".json").read_text())
        (directory / f"{name}.onnx.json").write_text(json.dumps(config | changes))
        if card:
            (directory / "MODEL_CARD").write_text(card)
        file = directory / f"{name}.onnx"
        if network is None:
            shutil.copy(voice.packaged(), file)
        else:
            file.write_bytes(network)
        return file

    return write
