"""The options `speech` and `speech_clone_model`: what is chosen, and what is refused by name."""

import pytest

from asr_server.core import settings
from asr_server.engine import plan
from asr_server.engine.capabilities import Capabilities
from asr_server.engine.speech.espeak import package


def resolved(**chosen):
    machine = Capabilities(gpu=False, torch_cuda=False)
    return plan.resolve(settings.load(_env_file=None, model_id="moonshine-tiny-en", **chosen), machine)


@pytest.mark.parametrize(("wanted", "value"), [("auto", "espeak"), ("espeak", "espeak"), ("fake", "fake"), ("off", "")])
def test_speech_is_what_was_asked_for(wanted, value):
    """`auto` is eSpeak NG where it is installed."""
    found = resolved(speech=wanted)
    assert (found.value("speech"), found.is_active("speech_clone_model")) == (value, False)


def test_a_machine_without_espeak_is_silent_unless_it_is_named(monkeypatch):
    """With the reason, and what to install."""
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
        ({"speech": "espeak", "fake_engine_script": "script.json"}, "FAKE_ENGINE_SCRIPT"),
    ],
)
def test_what_cannot_run_is_refused(chosen, named):
    """With the name of the setting."""
    with pytest.raises(plan.PlanError, match=named):
        resolved(**chosen)


def test_a_script_is_for_any_scripted_engine(tmp_path):
    """The model need not be one."""
    assert resolved(speech="fake", fake_engine_script=str(tmp_path)).fake_script == tmp_path
