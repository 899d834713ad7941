"""Checkpoint directories: fit, or an error that says what to do. Every broken one is made from the bundled one."""

import json
import shutil

import pytest

from asr_server import demo
from asr_server.core.errors import ModelUnavailable
from asr_server.engine.qwen_asr import checkpoint


def _model(directory):
    return shutil.copytree(demo.checkpoint_path(), directory / "model")


def _without(name):
    return lambda copy: (copy / name).unlink()


def _with(name, content):
    return lambda copy: (copy / name).write_text(content if isinstance(content, str) else json.dumps(content))


def _flat(copy):
    """The layout of transformers 5."""
    config = json.loads((copy / "config.json").read_text())
    thinker = config.pop("thinker_config")
    (copy / "config.json").write_text(json.dumps({**config, **thinker, "model_type": "qwen3_asr"}))


@pytest.mark.parametrize("aligner", [False, True])
@pytest.mark.parametrize("name", ["/no/such/place", "./nothing", "noslash", "a/b/c", "/" + "a" * 300])
def test_an_absent_checkpoint_says_that_it_is_absent(name, aligner):
    """A path that is not there, or a name that is no hub id. The way out is its own variable."""
    setting = "FORCED_ALIGNER_ID" if aligner else "MODEL_ID"
    with pytest.raises(ModelUnavailable, match=f"{setting}={name}: there is no such directory"):
        checkpoint.locate(name, aligner=aligner)


def test_a_model_is_on_the_disk_only_if_it_is_whole(tmp_path):
    """The bundled one is; a directory that is not there, one that lacks a file, and a name of the hub are not."""
    copy = _model(tmp_path)
    assert checkpoint.local("demo")
    assert checkpoint.local(str(copy))
    (copy / "config.json").unlink()
    assert not any(checkpoint.local(name) for name in (str(copy), "/no/such", "nobody/nothing-of-this-name"))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_without("model.safetensors"), r"incomplete, it lacks model\.safetensors"),
        (_without("tokenizer_config.json"), r"incomplete, it lacks tokenizer_config\.json"),
        (_without("preprocessor_config.json"), r"incomplete, it lacks preprocessor_config\.json"),
        # A divided checkpoint is checked against its own index.
        (
            _with("model.safetensors.index.json", {"weight_map": {"b": "model-2.safetensors"}}),
            r"lacks model-2\.safetensors",
        ),
        (_with("config.json", {"model_type": "whisper"}), "'whisper'"),
        (_flat, r"lacks processor_config\.json\."),
        (_with("config.json", {"model_type": "qwen3_asr"}), "neither layout"),
        (_with("config.json", "{"), "damaged"),
        (_with("config.json", "[]"), "damaged"),
        (_with("config.json", ""), "damaged"),
    ],
)
def test_what_cannot_be_loaded_is_refused(tmp_path, damage, words):
    """The error names what is missing or what it is instead, before anything is loaded."""
    copy = _model(tmp_path)
    damage(copy)
    with pytest.raises(ModelUnavailable, match=words):
        checkpoint.locate(str(copy))


def test_an_aligner_and_a_recogniser_are_not_taken_for_each_other(tmp_path):
    """Each bundled checkpoint is refused in the other's place, by the name of the setting that holds it."""
    with pytest.raises(ModelUnavailable, match=r"FORCED_ALIGNER_ID=.*cannot align"):
        checkpoint.locate(str(demo.checkpoint_path()), aligner=True)
    with pytest.raises(ModelUnavailable, match=r"MODEL_ID=.*cannot transcribe"):
        checkpoint.locate(str(demo.aligner_path()))
    copy = shutil.copytree(demo.aligner_path(), tmp_path / "aligner")
    (copy / "model.safetensors").unlink()
    with pytest.raises(ModelUnavailable, match=r"FORCED_ALIGNER_ID=.*model\.safetensors"):
        checkpoint.locate(str(copy), aligner=True)


@pytest.mark.parametrize("aligner", [False, True])
def test_a_checkpoint_may_come_without_a_generation_config(tmp_path, aligner):
    """The tokens that end an answer are known by name, and an aligner generates nothing."""
    path = demo.aligner_path() if aligner else demo.checkpoint_path()
    copy = shutil.copytree(path, tmp_path / "copy", ignore=shutil.ignore_patterns("generation_config.json"))
    assert checkpoint.locate(str(copy), aligner=aligner) == copy


def test_a_name_that_cannot_be_fetched_says_what_to_do(monkeypatch):
    """The message names the other way, without network and cache."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelUnavailable, match="directory"):
        checkpoint.locate("nobody/no-such-model")
