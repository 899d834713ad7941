"""The options `speech` and `speech_clone_model`: what is chosen, and what is refused by name."""

from dataclasses import replace
from unittest.mock import Mock

import pytest

from asr_server.core import settings
from asr_server.engine import plan
from asr_server.engine.capabilities import Capabilities
from asr_server.features.speech_output import options
from asr_server.features.speech_output.engines import piper
from asr_server.features.speech_output.engines.espeak import package
from asr_server.features.speech_output.options import FEATURE

MACHINE = Capabilities(gpu=False, torch_cuda=False)
WITH_SDK = replace(MACHINE, packages=frozenset({"qwen-tts", "openvino"}), cpu_flags=frozenset({"amx_int8", "amx_bf16"}))


def resolved(machine=MACHINE, **chosen):
    values = {"model_id": "demo", **chosen}
    return plan.resolve(settings.load(_env_file=None, **values), machine, (FEATURE,))


def values(found):
    return tuple(found.value(name) for name in ("speech", "speech_other_languages", "speech_clone_model"))


@pytest.mark.parametrize(
    ("chosen", "missing", "expected"),
    [
        ({"speech": "auto"}, "it is ill", ("espeak", "", "")),
        ({"speech": "espeak"}, "", ("espeak", "", "")),
        ({"speech": "fake"}, "", ("fake", "", "")),
        ({"speech": "off"}, "", ("", "", "")),
        ({"speech": "espeak", "speech_clone_model": "fake"}, "", ("espeak", "", "fake")),
        ({"speech": "auto"}, "", (piper.DEFAULT, "espeak", "")),
        ({"speech": "piper"}, "", (piper.DEFAULT, "espeak", "")),
        ({"speech": "piper/de_DE-x-low"}, "", ("piper/de_DE-x-low", "espeak", "")),
    ],
)
def test_speech_is_what_was_asked_for(monkeypatch, chosen, missing, expected):
    """`auto` is a voice of Piper where that can run, with eSpeak NG for what it does not speak; else eSpeak NG."""
    monkeypatch.setattr(piper, "missing", lambda value: missing)
    found = resolved(**chosen)
    assert values(found) == expected
    assert [option.name for option in found.options].count("speech") == 1
    assert (found.speech_models, found.shares) == ({}, 1)


def test_a_machine_without_espeak_is_silent_unless_it_is_named(monkeypatch):
    monkeypatch.setattr(piper, "missing", lambda value: "it is ill")
    monkeypatch.setattr(package, "find", lambda: None)
    found = resolved(speech="auto")
    assert not found.is_active("speech")
    assert "install the system's package espeak-ng" in found.reason("speech")
    with pytest.raises(plan.PlanError, match="SPEECH=espeak: eSpeak NG is not there"):
        resolved(speech="espeak")


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        ({"speech": "loudly"}, "SPEECH=loudly"),
        ({"speech": "piper"}, rf"\ASPEECH={piper.DEFAULT}: it is ill; or unset it\.\Z"),
        ({"speech": "off", "speech_clone_model": "fake"}, "SPEECH=off"),
        ({"speech": "owner/name"}, "SPEECH=owner/name: .*make speech"),
        ({"speech_clone_model": "owner/name"}, "SPEECH_CLONE_MODEL=owner/name: .*make speech"),
    ],
)
def test_what_cannot_run_is_refused(monkeypatch, chosen, said):
    monkeypatch.setattr(piper, "missing", lambda value: "it is ill")
    with pytest.raises(plan.PlanError, match=said):
        resolved(**chosen)


@pytest.mark.parametrize("chosen", [{"speech": "Qwen/X-Base"}, {"speech_clone_model": "Qwen/X-CustomVoice"}])
def test_a_checkpoint_of_the_other_kind_is_refused(chosen):
    with pytest.raises(plan.PlanError, match="SPEECH_CLONE_MODEL a Base checkpoint"):
        resolved(WITH_SDK, **chosen)


@pytest.mark.parametrize(("option", "imitates"), [("speech", True), ("speech_clone_model", False)])
def test_a_checkpoint_on_this_machine_is_known_by_its_files(monkeypatch, option, imitates):
    """Not by its name, which may be anything."""
    monkeypatch.setattr(options, "local", lambda wanted: Mock(traits=Mock(imitates=imitates)))
    with pytest.raises(plan.PlanError, match="SPEECH_CLONE_MODEL a Base checkpoint"):
        resolved(WITH_SDK, **{option: "o/mine"})
    monkeypatch.setattr(options, "local", lambda wanted: Mock(traits=Mock(imitates=not imitates)))
    assert resolved(WITH_SDK, **{option: "o/mine"}).value(option) == "o/mine"


def test_models_that_speak_run_as_the_recogniser_does():
    """Speech models run in its formats and on its threads, each with a part of the memory; models other than the
    default have no voice."""
    found = resolved(WITH_SDK, model_id="o/large,o/small", speech="o/voices", speech_clone_model="o/base")
    assert values(found) == ("o/voices", "", "o/base")
    assert found.speech_models.keys() == {"speech", "speech_clone_model"}
    for name, model in found.speech_models.items():
        assert (model.setting, model.device, model.dtype) == (name.upper(), found.device, found.dtype)
        assert model.cpu_threads == found.cpu_threads
    assert {found.shares, *(model.shares for model in found.speech_models.values())} == {4}
    assert not any(other.speech_models for other in found.others)
