"""The held-out recordings: what the manifest says is what is there, and no training voice is among them."""

import json

from E2Etest.recordings import AUDIO
from tools.training.vocabulary import Language, is_known
from tools.training.voices import Role, voices

CLIPS = json.loads((AUDIO / "manifest.json").read_text(encoding="utf-8"))


def test_manifest_and_folder_agree():
    """The manifest lists exactly the recordings in the folder, under 6 MB together."""
    files = {file.name for file in AUDIO.glob("*.flac")}
    assert {clip["file"] for clip in CLIPS} == files
    assert sum((AUDIO / name).stat().st_size for name in files) < 6_000_000


def test_clips_say_known_words_or_nothing():
    """Every clip with a language says words of the vocabulary, and every clip without one says nothing."""
    for clip in CLIPS:
        if clip["language"] is None:
            assert clip["text"] == ""
        else:
            assert clip["text"]
            assert is_known(Language(clip["language"]), clip["text"])


def test_clips_are_in_held_out_voices():
    """No clip is spoken by a voice outside the held-out ones."""
    held_out = {voice.name for language in Language for voice in voices(Role.HELD_OUT, language)}
    assert {clip["voice"] for clip in CLIPS if clip["language"]} <= held_out
