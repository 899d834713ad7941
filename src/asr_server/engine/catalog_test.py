"""What the loaded model is called and knows."""

import pytest

from asr_server.core.conftest import raises
from asr_server.core.errors import UnsupportedLanguage
from asr_server.engine.catalog import Catalog, Task


def test_a_language_is_named_in_any_spelling_or_refused_with_those_that_the_model_knows():
    """No language at all is always right; a language that no model here knows is refused too."""
    catalog = Catalog("small", ["English"], others={"large": ["German", "English"]})
    catalog.check_language(None)
    found = [catalog.language(*asked) for asked in (("eng",), ("und",), ("de", "large"))]
    assert found == ["English", None, "German"]
    for value, model, known in (("de", "", "English"), ("is", "large", "English, German")):
        with pytest.raises(UnsupportedLanguage, match=rf"It knows: {known}\."):
            catalog.language(value, model)
    with pytest.raises(UnsupportedLanguage, match=r"does not know German\.") as refusal:
        catalog.check_language("German", "source_language")
    assert refusal.value.param == "source_language"


def test_every_name_that_clients_have_built_in_means_the_model():
    """OpenAI's, those of other servers, other sizes of the same model, and the operator's own."""
    catalog = Catalog("Qwen/Qwen3-ASR-1.7B", aliases=("our-model", "team-*"))
    names = (
        "whisper-1 whisper-large-v3-turbo gpt-4o-mini-transcribe-2026-01-01 Systran/faster-whisper-large-v3 "
        "openai/whisper-large-v3-turbo distil-whisper/distil-large-v3 deepdml/faster-distil-whisper-large-v3.5 "
        "large-v3 turbo base Qwen/Qwen3-ASR-0.6B our-model team-a/b"
    )
    for name in names.split():
        assert catalog.find(name).id == name
    assert catalog.find("Qwen/Qwen3-ASR-1.7B").owned_by == "Qwen"
    assert catalog.default == catalog.all()[0].id == "Qwen/Qwen3-ASR-1.7B"
    assert not [model.id for model in catalog.all() if "*" in model.id]


@pytest.mark.parametrize("name", ["", "gpt-4o", "WHISPER-1", "our-model-2", "base-2", "whisper"])
def test_another_name_is_refused_with_those_that_there_are(name):
    """By case too, since names of models have it."""
    with raises("model_not_found", match=r"has the names demo, whisper-1, .*our-model.*\*faster-.*MODEL_ALIASES=\*"):
        Catalog("demo", aliases=("our-model",)).find(name)


def test_every_name_means_the_model_where_the_operator_says_so():
    """`*`, for any name of a sane length."""
    catalog = Catalog("demo", aliases=("*",))
    assert catalog.find("anything at all").owned_by == "alias"
    with raises("model_not_found"):
        catalog.find("x" * 201)


def test_every_resident_model_has_its_name():
    """An alias means the default, also where it would fit the name of another."""
    catalog = Catalog("Qwen/Qwen3-ASR-1.7B", others={"Qwen/Qwen3-ASR-0.6B": ["German"], "small": ["English"]})
    assert [model.id for model in catalog.all()][:3] == ["Qwen/Qwen3-ASR-1.7B", "Qwen/Qwen3-ASR-0.6B", "small"]
    for name in ("small", "Qwen/Qwen3-ASR-0.6B"):
        assert catalog.find(name).resident == name
    for name in ("Qwen/Qwen3-ASR-1.7B", "whisper-1", "Qwen/Qwen3-ASR-4B"):
        assert catalog.find(name).resident == ""
    assert catalog.find("any at all", any_name=True).resident == ""


def test_models_that_speak_have_names_apart():
    """Listed behind the others, with what they are for; of a name in both lists the recordings' model is meant."""
    catalog = Catalog("demo", aliases=("both",), speech=("espeak", "both"))
    listed = [(model.id, model.task) for model in catalog.all()]
    names = "espeak", "tts-1", "tts-1-hd", "gpt-4o-mini-tts", "qwen-tts"
    assert listed[-5:] == [(name, Task.SPEECH) for name in names]
    assert [task for name, task in listed if name in ("demo", "both")] == [Task.TRANSCRIPTION] * 2
    for name in ("both", "espeak", "tts-1", "tts-1-1106", "gpt-4o-mini-tts-2025-12-15", "Qwen/Qwen3-TTS-12Hz-0.6B"):
        assert catalog.find_speech(name).id == name
        assert catalog.retrieve(name).task is (Task.TRANSCRIPTION if name == "both" else Task.SPEECH)
