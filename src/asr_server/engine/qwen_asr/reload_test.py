"""A model that is loaded again after an idle time: from where it was found, without the network."""

import shutil
import socket

import pytest

from asr_server import demo
from asr_server.engine.conftest import HASH, aligned, downloaded, loaded_aligner, loaded_qwen
from asr_server.engine.feature import Plan
from asr_server.engine.protocol import AlignItem, Alignment, Utterance
from asr_server.engine.qwen_asr.runtime import aligner_bytes

pytestmark = pytest.mark.torch

NEWER = "b" * 40


@pytest.fixture(autouse=True)
def network(monkeypatch):
    """A network on which nothing can be reached, and no test tries."""
    attempts = []

    def connect(self, address):
        attempts.append(address)
        raise OSError("no network")

    monkeypatch.setattr(socket.socket, "connect", connect)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    yield
    assert attempts == []


@pytest.mark.nightly
def test_a_reload_asks_no_hub_and_takes_the_same_model(cache, speech, run):
    """Though a newer one has come to the cache. If the files are gone, they are looked for again."""
    downloaded(cache, "o/model")
    engine = loaded_qwen("o/model", rows=2)
    engine.unload()
    downloaded(cache, "o/model", commit=NEWER)
    engine.load()
    assert engine.info.model_revision == HASH
    assert run(engine, [Utterance(speech)])[0].text == demo.sample().text
    engine.unload()
    shutil.rmtree(cache / "models--o--model/snapshots" / HASH)
    engine.load()
    assert engine.info.model_revision == NEWER


def test_the_aligner_is_reloaded_without_the_hub_too(cache, speech):
    """Though a newer one, which could not be loaded, has come to the cache."""
    downloaded(cache, "o/aligner", source=demo.aligner_path())
    aligner = loaded_aligner("o/aligner")
    aligner.unload()
    downloaded(cache, "o/aligner", source=demo.aligner_path(), commit=NEWER)
    (cache / "models--o--aligner/snapshots" / NEWER / "model.safetensors").write_bytes(b"")
    aligner.locate()
    aligner.load()
    (found,) = aligned(aligner, [AlignItem(speech, demo.sample().text, "English")])
    assert isinstance(found, Alignment)


def test_the_aligners_memory_is_known_before_it_is_loaded(cache):
    """Local weights count at their loaded size. Otherwise the size of the released aligner counts."""

    def planned(aligner_id, item_bytes=4):
        plan = Plan("qwen", "demo", "cpu", "float32", 2, 0, (), aligner_id=aligner_id)
        return aligner_bytes(plan, item_bytes)

    file_bytes = (demo.aligner_path() / "model.safetensors").stat().st_size
    weights = planned("demo", 4) - planned("demo", 2)
    assert weights == pytest.approx(file_bytes, rel=0.05)  # 16 bits in the file, and a header
    assert planned("demo", 2) - file_bytes == pytest.approx(512 * 2**20, rel=0.01)
    assert planned("o/aligner", 2) > 1_800_000_000
    downloaded(cache, "o/aligner", source=demo.aligner_path())
    assert planned("o/aligner") == planned("demo")
    assert planned("") == 0
