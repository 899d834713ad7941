"""All options that a CPU has, at once: so every pair of them has run. feature_list_test has those that exclude others.

CUDA graphs, 8 bits on GPUs and TensorRT need a card: `make gpu` runs them.
"""

import pytest

from asr_server import demo
from E2Etest.drive.process import ready
from E2Etest.drive.session import data, finals, pcm_of, pieces, stream

pytestmark = [pytest.mark.integration, pytest.mark.torch, pytest.mark.nightly, pytest.mark.timeout(900)]

ENGLISH = "moonshine-tiny-en"
OPTIONS = {
    "FAST_MODEL_ID": ENGLISH,
    "DUAL_MODEL": "true",
    "USE_SPECULATIVE": "true",
    "NUMA_NODE": "0",
    "GATEWAY_MODE": "true",
    "ENGINE_PROCESS": "true",
}


# Those of one library exclude those of the other.
LIBRARIES = {
    "openvino": {"QUANTIZE": "int8"},
    "torch": {"RUNTIME": "torch", "FUSE": "compile"},
}


@pytest.fixture(scope="module", params=LIBRARIES)
def server(request, tmp_path_factory):
    from asr_server.features.encoders import onnx_export  # imports torch

    folder = tmp_path_factory.mktemp("options")
    onnx_export.export(demo.checkpoint_path(), folder / "encoder.onnx", int8=False)
    options = {**OPTIONS, **LIBRARIES[request.param], "ENCODER_PATH": str(folder / "encoder.onnx")}
    with ready(folder / "log", MODEL_ID=f"demo,{ENGLISH}", **options) as server:
        yield server, set(LIBRARIES[request.param])


def test_all_of_them_are_active_and_a_recording_is_transcribed(server, sample):
    """By the default model and by the one that is picked; word times come from the aligner."""
    (server, of_library), (audio, text) = server, sample
    asked = {"response_format": "verbose_json", "timestamp_granularities[]": "word"}
    answer = server.transcribe(audio, **asked).json()
    assert (answer["text"], {word["source"] for word in answer["words"]}) == (text, {"aligned"})
    assert server.transcribe(audio, model=ENGLISH).status_code == 200
    active = {option["name"] for option in server.health()["plan"] if option["active"]}
    wanted = {name.lower() for name in OPTIONS if name != "FAST_MODEL_ID"} | {"models", "encoder_path", "aligner"}
    assert active >= wanted | {name.lower() for name in of_library}


def test_a_live_session_keeps_its_words(server):
    """Partials are the fast model's, the final the accurate one's."""
    messages = stream(server[0], pieces(data(pcm_of(demo.sample().recording)), 6_400), language="en")
    assert [text.strip() for text, *_ in finals(messages)] == [demo.sample().text]
