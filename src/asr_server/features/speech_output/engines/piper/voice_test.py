"""The files of voices: what they say about themselves, and those that cannot be used."""

import shutil

import pytest

from asr_server.features.speech_output.engines import piper
from asr_server.features.speech_output.engines.piper import voice
from asr_server.features.speech_output.engines.piper.voice import UnusableVoice


def test_each_speaker_is_a_voice(voice_file):
    found = voice.read(voice_file(speaker_id_map={"Ann": 4, "bob": 2}, language={"code": "en_GB"}))
    assert found.speakers == {"de_de-karl-low/ann": 4, "de_de-karl-low/bob": 2}
    assert found.traits.openai_voices["ash"] == "de_de-karl-low/bob"
    assert found.traits.languages == ("en-gb", "en")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"phoneme_type": "pinyin"}, "pinyin"),
        ({"phoneme_id_map": {"a": [1]}}, "start and the end"),
        ({"audio": {"sample_rate": 5}}, "sample_rate is 5"),
        ({"inference": {"length_scale": float("nan")}}, "length_scale is nan"),
        ({"language": {"code": "?"}}, "language"),
        ({"speaker_id_map": {str(n): n for n in range(1_001)}}, "1000 speakers"),
        ({"espeak": {}}, "no configuration"),
    ],
)
def test_a_configuration_that_cannot_be_used_is_refused(voice_file, changes, reason):
    file = voice_file(**changes)
    with pytest.raises(UnusableVoice, match=reason):
        voice.read(file)
    assert reason in piper.missing(str(file))


def test_a_file_that_is_not_there(tmp_path, voice_file):
    with pytest.raises(UnusableVoice, match="there is no file"):
        voice.read(tmp_path / "none.onnx")
    file = voice_file()
    (file.with_name(file.name + ".json")).unlink()
    with pytest.raises(UnusableVoice, match="cannot be read"):
        voice.read(file)
    with pytest.raises(UnusableVoice, match="has no file"):
        voice.read_all(tmp_path)


def test_a_directory_has_several_voices(tmp_path, voice_file):
    """The voices are in the order of their paths; two of one name would hide each other."""
    voice_file("en_US-zoe-low")
    voice_file("de_DE-karl-low", card="* Licence: CC BY 4.0\n")
    first, second = voice.read_all(tmp_path)
    assert (first.name, second.name) == ("de_DE-karl-low", "en_US-zoe-low")
    assert [one.traits.voices[0].licence for one in (first, second)] == ["CC BY 4.0", None]
    assert piper.takes(str(tmp_path))
    assert len(piper.voices(str(tmp_path))) == 2
    shutil.copytree(tmp_path / "de_DE-karl-low", tmp_path / "copy")
    with pytest.raises(UnusableVoice, match="same name"):
        voice.read_all(tmp_path)


def test_a_voice_of_the_hub_is_found_in_its_cache(tmp_path, monkeypatch, voice_file):
    """Three files of one repository; one that is not there is refused with the command that downloads it."""
    name, asked = "piper/de_DE-karl-low", []
    file = voice_file(card="* License: CC0\n")
    monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda repository, path: asked.append(path) or str(file))
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda repository, path: str(file) if asked else None)
    assert piper.missing(name).endswith("asr-server models download piper/de_DE-karl-low")
    assert voice.fetch(name) == file
    assert sorted(asked) == [f"de/de_DE/karl/low/{one}" for one in ("MODEL_CARD", file.name, f"{file.name}.json")]
    assert piper.missing(name) == ""
    assert voice.fetch("Qwen/Qwen3-ASR-0.6B") is None
    with pytest.raises(UnusableVoice, match="en_US-joe-medium"):
        voice.stored("piper/../../etc")
