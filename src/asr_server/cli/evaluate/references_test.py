"""Recordings with their texts, from folders and manifests."""

from pathlib import Path

import pytest

from asr_server.cli.evaluate.references import in_folder, in_manifest
from asr_server.cli.failure import UsageError
from asr_server.cli.recording_files import RecordingSource


def _sources(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"")
    return [RecordingSource(folder / name, Path(name), listed=True) for name in names]


def _manifest(folder, name, content):
    (folder / name).write_text(content, encoding="utf-8")
    return folder / name


def _facts(found):
    return [(one.name, one.text, one.language, one.speaker) for one in found]


def test_a_text_is_next_to_its_recording(tmp_path):
    sources = _sources(tmp_path, "a.wav", "b.mp3", "c/7-1.flac", "d.wav", "e.wav")
    (tmp_path / "a.txt").write_text("\ufeffwörds of a\n", encoding="utf-8")
    (tmp_path / "b.mp3.txt").write_text("words of b")
    (tmp_path / "c" / "7.trans.txt").write_text("7-1 WORDS OF C\n7-2 MORE\n")
    (tmp_path / "e.txt").write_text("")
    found, skipped = in_folder(sources)
    assert [(one.name, one.text.strip()) for one in found] == [
        ("a.wav", "wörds of a"),
        ("b.mp3", "words of b"),
        ("c/7-1.flac", "WORDS OF C"),
        ("e.wav", ""),
    ]
    assert [(item.path.name, item.reason) for item in skipped] == [("d.wav", "no text")]


def test_folders_name_language_and_speaker_from_the_top(tmp_path):
    """A folder further down names nothing, and one that is missing leaves its label empty."""
    sources = _sources(tmp_path, "de/ann/x/1.wav", "de/2.wav")
    for source in sources:
        source.path.with_suffix(".txt").write_text("word")
    found, _ = in_folder(sources, ("language", "speaker"))
    assert _facts(found) == [("de/ann/x/1.wav", "word", "de", "ann"), ("de/2.wav", "word", "de", "")]


TWO = [("a.wav", "one, two", "de", "ann"), ("b.wav", "three", "", "")]
TWICE = "path,text\na.wav,one\nb.wav,two\na.wav,one\n"


@pytest.mark.parametrize(
    ("name", "content", "facts", "left_out"),
    [
        # CSV, Common Voice, NeMo, and a list.
        ("a.csv", 'path,text,language,speaker\na.wav,"one, two",de,ann\nb.wav,three,,\n', TWO, []),
        ("a.TSV", "client_id\tPath\tsentence\tlocale\nann\ta.wav\tone, two\tde\n\tb.wav\tthree\t\n", TWO, []),
        (
            "a.jsonl",
            '{"audio_filepath": "a.wav", "text": "one, two", "lang": "de", "speaker": "ann"}\n'
            '{"audio_filepath": "b.wav", "text": "three", "duration": 2}\n',
            TWO,
            [],
        ),
        # Quotes in TSV are characters: a sentence of Common Voice may begin with one and never end it.
        ("a.tsv", 'path\tsentence\na.mp3\t"Go on\n', [("a.mp3", '"Go on', "", "")], []),
        ("a.csv", TWICE, [("a.wav", "one", "", ""), ("b.wav", "two", "", "")], ["listed twice"]),
        # An empty text is a text: nobody speaks.
        ("a.json", '[{"path": "a"}, {"file": "b", "text": "", "voice": "c"}]', [("b", "", "", "c")], ["no text"]),
    ],
)
def test_manifests_have_the_columns_of_common_data_sets(tmp_path, name, content, facts, left_out):
    """A recording that is listed twice counts once; one without a text is left out."""
    found, skipped = in_manifest(_manifest(tmp_path, name, content))
    assert _facts(found) == facts
    assert [item.reason for item in skipped] == left_out


def test_recordings_of_a_manifest_are_next_to_it_or_in_clips(tmp_path):
    """Where it is in neither, the path is as the manifest has it, so that the error names it."""
    _sources(tmp_path, "clips/a.mp3", "b.mp3")
    found, _ = in_manifest(_manifest(tmp_path, "m.tsv", "path\ttext\na.mp3\tx\nb.mp3\ty\nc.mp3\tz\n"))
    assert [one.source.path for one in found] == [tmp_path / "clips/a.mp3", tmp_path / "b.mp3", tmp_path / "c.mp3"]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.csv", b"sound,words\na.wav,one\n", "row 1 has no path; the column is called path or file"),
        ("a.jsonl", b'{"path": "a.wav", "text": "one"}\n{"path": \n', "row 2 cannot be read"),
        ("a.json", b'["a.wav"]', "row 1 is not an object"),
        ("a.csv", b"path,text\na.wav,\xff\n", "not text in UTF-8"),
        ("a.csv", f"{TWICE}b.wav,three\n".encode(), "row 4 gives b.wav another text"),  # nobody knows which is right
        ("a.csv", b"path,text\na.wav," + 200_000 * b"x", "row 1 cannot be read: field larger than"),
    ],
)
def test_a_manifest_that_cannot_be_used_is_refused_with_its_row(tmp_path, name, content, said):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match=said):
        in_manifest(tmp_path / name)
