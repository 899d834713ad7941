"""A hub cache, laid out here as the hub's library does it, from the bundled checkpoint."""

import json
import shutil

import huggingface_hub
import pytest

from asr_server import demo
from asr_server.core.errors import ModelUnavailable
from asr_server.engine.conftest import HASH, downloaded
from asr_server.engine.qwen_asr import checkpoint, model_cache


@pytest.fixture
def asked(monkeypatch):
    """The revisions that the hub is asked for, without a network."""
    asked, cached = [], huggingface_hub.snapshot_download

    def download(name, *, revision, local_files_only=False):
        if local_files_only:
            return cached(name, revision=revision, local_files_only=True)
        asked.append(revision or "main")
        raise OSError("no network")

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    return asked


def test_the_list_has_the_bundled_one_and_what_wasdownloaded(cache):
    """Whole and cut-short ones of this family, and no other models. Links count as what they lead to, once."""
    downloaded(cache, "o/whole")
    downloaded(cache, "o/cut", without=("model.safetensors",))
    downloaded(cache, "o/Qwen3-ASR-begun", without=("config.json",))
    downloaded(cache, "o/whisper", model_type="whisper")
    downloaded(cache, "o/unknown", without=("config.json",))
    found = {stored.name: stored for stored in model_cache.listed()}
    assert set(found) == {"demo", "o/whole", "o/cut", "o/Qwen3-ASR-begun"}
    assert not found["demo"].problem
    assert not found["o/whole"].problem
    assert "model.safetensors" in found["o/cut"].problem
    expected = sum(f.stat().st_size for f in demo.checkpoint_path().iterdir())
    assert found["o/whole"].size_bytes == found["demo"].size_bytes == expected


@pytest.mark.parametrize(
    "what", [model_cache.listed, lambda: model_cache.find("owner/name"), lambda: checkpoint.locate("owner/name")]
)
def test_a_cache_that_is_closed_to_this_user_is_reported(cache, monkeypatch, what):
    """A volume of root's, say: nothing is wrong with the name or the network."""

    def closed(*_, **__):
        raise PermissionError(13, "Permission denied", str(cache))

    monkeypatch.setattr("huggingface_hub.scan_cache_dir", closed)
    monkeypatch.setattr("huggingface_hub.snapshot_download", closed)
    with pytest.raises(ModelUnavailable, match=r"hub's cache \(HF_HOME\) cannot be .*: Permission denied"):
        what()


def test_a_model_is_found_by_name_directory_or_hub_id(cache):
    """A model that would have to be downloaded is None."""
    snapshot = downloaded(cache, "o/whole")
    assert model_cache.find("demo").directory == demo.checkpoint_path()
    assert model_cache.find(str(snapshot)).name == str(snapshot)
    assert model_cache.find("o/whole").directory == snapshot
    assert model_cache.find("o/other") is None
    with pytest.raises(ModelUnavailable, match="no hub id"):
        model_cache.find("nothing")
    with pytest.raises(ModelUnavailable, match="no such directory"):
        model_cache.find("/" + "a" * 300)  # too long to be looked at


@pytest.mark.parametrize("cut", [-10, 4, 5000])
def test_weights_that_were_cut_short_are_found_by_their_header(cache, cut):
    """Every file is there, but a download broke off in one."""
    weights = downloaded(cache, "o/cut") / "model.safetensors"
    weights.resolve().write_bytes(weights.read_bytes()[:cut])
    with pytest.raises(ModelUnavailable, match="cut short"):
        model_cache.verify(model_cache.find("o/cut"))


def test_a_shard_without_its_tensors_is_found(cache):
    """The index names a tensor that its file does not hold."""
    snapshot = downloaded(cache, "o/shards")
    index = {"weight_map": {"thinker.nothing": "model.safetensors"}}
    (snapshot / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelUnavailable, match=r"thinker\.nothing"):
        model_cache.verify(model_cache.find("o/shards"))


def test_what_is_removed_is_gone_and_its_neighbours_stay(cache):
    """Neighbours of the same commit stay too. Without a cache there is the bundled one."""
    names = ["o/one", "o/two", "o/three"]
    for name in names:
        downloaded(cache, name)
    for gone in ("o/two", "o/three", "o/one"):
        size = model_cache.find(gone).size_bytes
        assert model_cache.remove(gone) == size
        names.remove(gone)
        assert {stored.name for stored in model_cache.listed()} == {*names, "demo"}
    shutil.rmtree(cache)
    assert [stored.name for stored in model_cache.listed()] == ["demo"]


@pytest.mark.parametrize("name", ["demo", "o/none", "."])
def test_only_what_was_downloaded_can_be_removed(cache, name):
    """The bundled model, a directory of the user's, and a model that is not there are refused."""
    with pytest.raises(ModelUnavailable, match="cache"):
        model_cache.remove(name)
    assert demo.checkpoint_path().is_dir()


def test_a_model_of_the_cache_is_taken_as_it_is(cache, asked):
    """The hub is not asked for a newer one, so the model never changes by itself. Another revision is another model."""
    other = "b" * 40
    main = downloaded(cache, "o/model")
    tagged = downloaded(cache, "o/model", branch="v1", commit=other)
    assert checkpoint.locate("o/model") == main
    for revision in ("v1", other):
        assert checkpoint.locate("o/model", revision=revision) == tagged
        assert model_cache.find("o/model", revision).directory == tagged
    assert not asked
    assert (checkpoint.revision_of(main), checkpoint.revision_of(demo.checkpoint_path())) == (HASH, "")


@pytest.mark.parametrize("revision", ["", "c" * 40])
def test_the_hub_is_asked_for_what_is_missing_or_to_be_updated(cache, asked, revision):
    """For a snapshot that was cut short, a revision that is not there, and by `asr-server models download`."""
    downloaded(cache, "o/model", without=() if revision else ("model.safetensors",))
    with pytest.raises(ModelUnavailable, match="o/model"):
        checkpoint.locate("o/model", revision=revision)
    assert asked == [revision or "main"]
    assert model_cache.find("o/model", "c" * 40) is None
    with pytest.raises(ModelUnavailable):
        checkpoint.locate("o/model", update=True)
    assert asked == [revision or "main", "main"]
