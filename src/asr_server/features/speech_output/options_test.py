"""The options `speech` and `speech_clone_model`: what is chosen, and what is refused by name."""

from dataclasses import replace

import pytest

from asr_server.core import settings
from asr_server.engine import plan
from asr_server.engine.capabilities import Capabilities
from asr_server.features.speech_output.engines import piper
from asr_server.features.speech_output.engines.espeak import package
from asr_server.features.speech_output.options import FEATURE

MACHINE = Capabilities(gpu=False, torch_cuda=False)
WITH_SDK = replace(MACHINE, packages=frozenset({"qwen-tts", "openvino"}), cpu_flags=frozenset({"amx_int8", "amx_bf16"}))


def resolved(machine=MACHINE, **chosen):
    values = {"model_id": "demo", **chosen}
    return plan.resolve(settings.load(_env_file=None, **values), machine, (FEATURE,))


@pytest.fixture(autouse=True)
def no_packaged_voice(monkeypatch):
    """The voice of Piper is not installed, unless a test says so."""
    monkeypatch.setattr(piper, "missing", lambda value: "it is ill")


@pytest.mark.parametrize(("wanted", "value"), [("auto", "espeak"), ("espeak", "espeak"), ("fake", "fake"), ("off", "")])
def test_speech_is_what_was_asked_for(wanted, value):
    """`auto` is eSpeak NG where it is installed."""
    found = resolved(speech=wanted)
    assert (found.value("speech"), found.is_active("speech_clone_model")) == (value, False)


def test_a_machine_without_espeak_is_silent_unless_it_is_named(monkeypatch):
    """The option has the reason, and what to install."""
    monkeypatch.setattr(package, "find", lambda: None)
    (option,) = (option for option in resolved(speech="auto").options if option.name == "speech")
    assert not option.active
    assert "install the system's package espeak-ng" in option.reason
    with pytest.raises(plan.PlanError, match="SPEECH=espeak: eSpeak NG is not there"):
        resolved(speech="espeak")


def test_an_engine_imitates_beside_another():
    """Each has a name of its own."""
    found = resolved(speech="espeak", speech_clone_model="fake")
    assert (found.value("speech"), found.value("speech_clone_model")) == ("espeak", "fake")


@pytest.mark.parametrize(
    ("chosen", "named"),
    [
        ({"speech": "loudly"}, "SPEECH=loudly"),
        ({"speech_clone_model": "owner/name"}, "SPEECH_CLONE_MODEL=owner/name"),
        ({"speech": "off", "speech_clone_model": "fake"}, "SPEECH=off"),
    ],
)
def test_what_cannot_run_is_refused(chosen, named):
    """The conflict has the name of the setting."""
    with pytest.raises(plan.PlanError, match=named):
        resolved(**chosen)


def test_a_script_is_for_any_scripted_engine(tmp_path, monkeypatch):
    """The model need not be one."""
    monkeypatch.setenv("FAKE_ENGINE_SCRIPT", str(tmp_path))
    assert resolved(speech="fake").fake_script == tmp_path


@pytest.mark.parametrize("option", ["speech", "speech_clone_model"])
def test_qwen3_tts_needs_its_sdk(option):
    """A hub id or a directory is refused with what to install."""
    with pytest.raises(plan.PlanError, match=rf"{option.upper()}=owner/name: .*make speech"):
        resolved(**{option: "owner/name"})
    assert resolved(WITH_SDK, **{option: "owner/name"}).value(option) == "owner/name"


def test_models_that_speak_run_as_the_recogniser_does():
    """Speech models run in its formats and on its threads, each with a part of the memory; models other than the
    default have no voice."""
    found = resolved(WITH_SDK, model_id="o/large,o/small", speech="o/voices", speech_clone_model="o/base")
    assert found.speech_models.keys() == {"speech", "speech_clone_model"}
    for name, model in found.speech_models.items():
        assert (model.setting, model.device, model.dtype) == (name.upper(), found.device, found.dtype)
        assert model.cpu_threads == found.cpu_threads
    assert {found.shares, *(model.shares for model in found.speech_models.values())} == {4}
    assert not any(other.speech_models for other in found.others)


@pytest.mark.parametrize(
    ("wanted", "value"), [("auto", piper.DEFAULT), ("piper", piper.DEFAULT), ("piper/de_DE-x-low", "piper/de_DE-x-low")]
)
def test_voices_of_piper_speak_first(wanted, value, monkeypatch):
    """eSpeak NG speaks what they do not."""
    monkeypatch.setattr(piper, "missing", lambda value: "")
    found = resolved(speech=wanted)
    assert (found.value("speech"), found.reason("speech")) == (value, piper.REASON)
    assert found.value("speech_other_languages") == "espeak"
    assert [option.name for option in found.options].count("speech") == 1
    assert (found.speech_models, found.shares) == ({}, 1)


def test_voices_of_piper_that_are_not_wanted_or_cannot_run():
    """Another value of SPEECH means that alone; `auto` is what can run; asked for by name, they are refused."""
    for wanted in ("espeak", "auto"):
        found = resolved(speech=wanted)
        assert (found.value("speech"), found.value("speech_other_languages")) == ("espeak", "")
    with pytest.raises(plan.PlanError, match=rf"\ASPEECH={piper.DEFAULT}: it is ill; or unset it\.\Z"):
        resolved(speech="piper")
