"""Checkpoint directories: fit, or an error that says what to do. Every broken one is made from the bundled one."""

import json
import shutil
from functools import partial

import pytest

from asr_server import demo
from asr_server.core.errors import ModelUnavailable
from asr_server.engine.qwen_asr import checkpoint


@pytest.fixture
def copy(tmp_path):
    directory = tmp_path / "model"
    shutil.copytree(demo.checkpoint_path(), directory)
    return directory


def _edit(directory, **changes):
    path = directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def _refusal(directory):
    with pytest.raises(ModelUnavailable) as refusal:
        checkpoint.locate(str(directory))
    return refusal.value.message


def test_the_bundled_and_a_given_directory_are_found(copy):
    """`demo` and a path go the same way."""
    assert checkpoint.locate("demo") == demo.checkpoint_path()
    assert checkpoint.locate(str(copy)) == copy


@pytest.mark.parametrize("model_id", ["/no/such/place", "./nothing", "noslash", "a/b/c"])
def test_an_absent_checkpoint_says_that_it_is_absent(model_id):
    """A path that is not there, or a name that is no hub id."""
    assert "no such directory" in _refusal(model_id)


def test_a_model_is_on_the_disk_only_if_it_is_whole(copy):
    """The bundled one is; a directory that is not there, one that lacks a file, and a name of the hub are not."""
    assert checkpoint.local("demo")
    assert checkpoint.local(str(copy))
    (copy / "config.json").unlink()
    assert not any(checkpoint.local(name) for name in (str(copy), "/no/such", "nobody/nothing-of-this-name"))


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer_config.json", "preprocessor_config.json"])
def test_an_incomplete_checkpoint_names_what_it_lacks(copy, name):
    """The missing file is in the message."""
    (copy / name).unlink()
    message = _refusal(copy)
    assert name in message
    assert "incomplete" in message


def test_a_missing_shard_is_named(copy):
    """A sharded checkpoint is checked against its own index."""
    (copy / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}})
    )
    assert "model-2.safetensors" in _refusal(copy)


def test_another_architecture_is_named(copy):
    """A Whisper checkpoint is recognised before anything is loaded."""
    _edit(copy, model_type="whisper")
    assert "'whisper'" in _refusal(copy)


def test_the_layout_of_transformers_5_needs_its_own_files(copy):
    """A flat configuration; the processor is one file, and what is missing is named."""
    config = json.loads((copy / "config.json").read_text())
    thinker = config.pop("thinker_config")
    (copy / "config.json").write_text(json.dumps({**config, **thinker, "model_type": "qwen3_asr"}))
    assert "lacks processor_config.json." in _refusal(copy)
    (copy / "processor_config.json").write_text("{}")
    checkpoint.check(copy, "demo")


def test_neither_layout_is_told_apart(copy):
    """A configuration of this family without its parts."""
    (copy / "config.json").write_text(json.dumps({"model_type": "qwen3_asr"}))
    assert "neither layout" in _refusal(copy)


def test_an_aligner_is_told_apart(copy):
    """A forced aligner has the same family name and cannot transcribe."""
    config = json.loads((copy / "config.json").read_text())
    _edit(copy, thinker_config={**config["thinker_config"], "model_type": "qwen3_asr_forced_aligner"})
    assert "aligner" in _refusal(copy)


def test_an_aligner_and_a_recogniser_are_not_taken_for_each_other():
    """Each bundled checkpoint is refused in the other's place, by the name of the setting that holds it."""
    assert checkpoint.locate("demo", aligner=True) == demo.aligner_path()
    assert checkpoint.locate(str(demo.aligner_path()), aligner=True) == demo.aligner_path()
    with pytest.raises(ModelUnavailable, match=r"FORCED_ALIGNER_ID=.*cannot align"):
        checkpoint.locate(str(demo.checkpoint_path()), aligner=True)
    with pytest.raises(ModelUnavailable, match=r"MODEL_ID=.*cannot transcribe"):
        checkpoint.locate(str(demo.aligner_path()))


def test_errors_about_an_aligner_name_its_setting(tmp_path):
    """The way out is the aligner's variable, not the model's."""
    with pytest.raises(ModelUnavailable, match="FORCED_ALIGNER_ID=/no/such/place"):
        checkpoint.locate("/no/such/place", aligner=True)
    copy = tmp_path / "aligner"
    shutil.copytree(demo.aligner_path(), copy)
    (copy / "model.safetensors").unlink()
    with pytest.raises(ModelUnavailable, match=r"FORCED_ALIGNER_ID=.*model\.safetensors"):
        checkpoint.locate(str(copy), aligner=True)


@pytest.mark.parametrize(
    ("path", "locate"),
    [(demo.checkpoint_path, checkpoint.locate), (demo.aligner_path, partial(checkpoint.locate, aligner=True))],
)
def test_a_checkpoint_may_come_without_a_generation_config(tmp_path, path, locate):
    """The tokens that end an answer are known by name, and an aligner generates nothing."""
    copy = tmp_path / "copy"
    shutil.copytree(path(), copy, ignore=shutil.ignore_patterns("generation_config.json"))
    assert locate(str(copy)) == copy


@pytest.mark.parametrize("content", ["{", "[]", ""])
def test_a_damaged_config_is_told_apart(copy, content):
    """Bytes that are no JSON object."""
    (copy / "config.json").write_text(content)
    assert "damaged" in _refusal(copy)


def test_a_name_that_cannot_be_fetched_says_what_to_do(monkeypatch):
    """The message names the other way, without network and cache."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert "directory" in _refusal("nobody/no-such-model")
