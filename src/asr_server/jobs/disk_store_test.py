"""Jobs on disk."""

from __future__ import annotations

import io
import json
import os
import shutil
import stat
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from asr_server.core.errors import JobsUnavailable
from asr_server.jobs.disk_store import JobFolders
from asr_server.jobs.record import JobRecord, RecordFormat, RecordState
from asr_server.jobs.runner import RecordingJobs
from asr_server.recordings.requests import (
    ChannelMode,
    KnownSpeaker,
    OutputOptions,
    ResponseFormat,
    Result,
    ServerVad,
    SpeakerOptions,
    SubtitleRequest,
    TranscriptionRequest,
    TranslationRequest,
    WordTimes,
)

RECORDS = RecordFormat(RecordingJobs.request_types)


@pytest.fixture
def store(tmp_path):
    made = JobFolders(tmp_path, RECORDS)
    yield made
    made.close()


STATED = {"language": "German", "hotwords": ("Zürich",), "chunking": ServerVad(0.4), "word_times": WordTimes.ESTIMATED}
OUTPUT = OutputOptions(ResponseFormat.SRT, max_lines=3)
REQUESTS = (
    TranscriptionRequest(**STATED, output=OUTPUT),
    SubtitleRequest(**STATED, output=OUTPUT),
    TranslationRequest(**STATED, output=OUTPUT, target_language="tlh", glossary={"Licht": "wov"}, bilingual=True),
)
RESULT = Result(b"", "text/plain", file_name="subtitles.srt", untranslated=0)


def content(store):
    """The stored result."""
    with store.result(FIRST) as file:
        return file.read()


def named(name):
    return f"job_{name:_<24}"


FIRST = named("1")


def record(identity=FIRST, request=REQUESTS[0], **changes):
    return JobRecord(identity, request, time.time(), **changes)


def test_what_is_kept_comes_back(store):
    """Record, recording and result are what was given, in the order in which jobs came."""
    jobs = [record(named(name), request) for name, request in zip("cba", REQUESTS, strict=True)]
    for job in jobs:
        store.add(job, io.BytesIO(b"audio"))
    assert store.records() == jobs
    with store.recording(named("a")) as file:
        assert file.read() == b"audio"


def test_a_finished_job_keeps_its_result_and_not_its_recording(store):
    """The upload is gone as soon as nobody needs it."""
    store.add(record(), io.BytesIO(b"audio"))
    done = record(state=RecordState.SUCCEEDED, result=RESULT)
    store.end(done, b"words")
    assert content(store) == b"words"
    assert store.records() == [done]
    with pytest.raises(FileNotFoundError):
        store.recording(FIRST)


def test_a_transcript_is_kept_beside_a_result_alone(store):
    """The audio is gone then; a job that failed leaves no text."""
    for name, result in (("a", RESULT), ("b", None)):
        store.add(record(named(name)), io.BytesIO(b"audio"))
        before = store.size_bytes(named(name))
        store.keep_transcript(named(name), bytes(50_000))
        assert store.size_bytes(named(name)) > before
        state = RecordState.SUCCEEDED if result else RecordState.FAILED
        store.end(record(named(name), state=state, result=result), b"words" if result else None)
    assert (store.transcript(named("a")), store.transcript(named("b"))) == (bytes(50_000), b"")
    store.remove(named("a"))
    assert store.transcript(named("a")) == b""


def test_clips_of_known_speakers_are_kept_until_the_job_is_over(store, tmp_path):
    """They are files, whatever bytes they have: a record would hold them in memory as long as the job is known."""
    known = (KnownSpeaker("Ann", b"RIFF\x00\xff"), KnownSpeaker("Bob", b"\x80"))
    speakers = SpeakerOptions(2, 3, known)
    request = SubtitleRequest(speakers=speakers, channel_mode=ChannelMode.SPLIT, output=OUTPUT)
    store.add(record(request=request), io.BytesIO(b"audio"))
    (stored,) = store.records()
    assert [speaker.clip for speaker in stored.request.speakers.known] == [b"", b""]
    assert store.request(stored) == request
    store.end(replace(stored, state=RecordState.SUCCEEDED, result=RESULT), b"words")
    assert {path.name for path in (tmp_path / "jobs" / FIRST).iterdir()} == {"job.json", "result"}
    store.remove(FIRST)
    assert not (tmp_path / "jobs" / FIRST).exists()


# Records of the first layout, which had no number: one that waits and one that is done.
OLD = {
    "id": named("old"),
    "created_at": 1.0,
    "state": "queued",
    "request": {
        "task": "translation",
        "options": {"language": "German", "context": "Zürich", "temperature": 0.5, "priority": 2, "timeout_s": 9.0},
        "shape": {"response_format": "srt", "words": False, "cues": {"max_line_columns": 30, "max_lines": 1}},
        "translating": {"target": {"name": "Klingon", "tag": "tlh"}, "glossary": {"Licht": "wov"}},
        "bilingual": True,
    },
    "media_type": "",
    "notes": {},
    "owner": "ann",
}
OLD_DONE = {
    **OLD,
    "id": named("done"),
    "created_at": 2.0,
    "state": "succeeded",
    "request": {"task": "transcription", "options": {}, "shape": {}},
    "media_type": "text/plain",
    "notes": {
        "Content-Disposition": 'attachment; filename="subtitles.srt"',
        "X-Subtitle-Timing": "mixed",
        "X-Untranslated": "3",
    },
}


def put(tmp_path, name, content=None):
    """A folder of that name with a recording, and with a record if one is given."""
    folder = tmp_path / "jobs" / name
    folder.mkdir()
    (folder / "recording").write_bytes(b"theirs")
    if content is not None:
        (folder / "job.json").write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


def test_a_record_of_an_earlier_version_is_read(store, tmp_path):
    """A job that waited is done as it was asked for, and one that is done has its result as it was."""
    for old in (OLD, OLD_DONE):
        put(tmp_path, old["id"], old)
    waits, done = store.records()
    assert waits == JobRecord(
        OLD["id"],
        TranslationRequest(
            language="German",
            prompt="Zürich",
            temperature=0.5,
            output=OutputOptions(ResponseFormat.SRT, max_line_chars=30, max_lines=1),
            target_language="tlh",
            glossary={"Licht": "wov"},
            bilingual=True,
        ),
        1.0,
        owner="ann",
    )
    assert done.result == Result(b"", "text/plain", "subtitles.srt", "mixed", untranslated=3)


def test_a_record_of_a_newer_version_waits_for_it(store, tmp_path):
    """It stays as it is: after a step back to an earlier version the newer one has all its jobs."""
    content = {"version": 3, "record": {"id": named("new"), "unheard": "of"}}
    folder = put(tmp_path, named("new"), content)
    assert store.records() == []
    assert json.loads((folder / "job.json").read_text()) == content
    assert (folder / "recording").read_bytes() == b"theirs"


DAMAGED = {
    "half": None,
    "empty": "",
    "cut": '{"version": 2, "rec',
    "list": [1],
    "number": {"version": "two", "record": {}},
    "gone": {"version": 1, "record": OLD},
    "strange": {**OLD, "request": None},
    "deep": "[" * 100_000,
}


def test_what_cannot_be_read_is_moved_aside(store, tmp_path):
    """Incomplete and damaged jobs do not stop the others, and lose nothing."""
    store.add(record(), io.BytesIO(b"audio"))
    for name, content in DAMAGED.items():
        put(tmp_path, named(name), content)
    for _ in range(2):
        assert [job.id for job in store.records()] == [FIRST]
        assert [path.name for path in (tmp_path / "jobs").iterdir()] == [FIRST]
    aside = {path.name: (path / "recording").read_bytes() for path in (tmp_path / "unreadable-jobs").iterdir()}
    assert aside == {named(name): b"theirs" for name in DAMAGED}


def test_a_copy_of_a_job_is_not_the_job(store, tmp_path):
    """Its record names another folder, whose files would be removed for it."""
    store.add(record(), io.BytesIO(b"audio"))
    shutil.copytree(tmp_path / "jobs" / FIRST, tmp_path / "jobs" / named("copy"))
    assert [job.id for job in store.records()] == [FIRST]
    assert (tmp_path / "unreadable-jobs" / named("copy") / "recording").exists()


def _mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_nobody_else_can_read_it(tmp_path):
    """Neither the jobs nor the directory around them, also if an earlier version left that open."""
    for made in (False, True):
        directory = tmp_path / str(made)
        if made:
            directory.mkdir(mode=0o755)
            (directory / "jobs").mkdir(mode=0o700)
        JobFolders(directory, RECORDS).close()
        assert [_mode(directory / name) for name in ("", "jobs", "lock")] == [0o700, 0o700, 0o600]


def test_what_is_no_job_is_left_alone(tmp_path):
    """STATE_DIR may be a directory that somebody else uses too, such as a home with a folder named jobs."""
    (tmp_path / "lock").write_text("mine")
    (tmp_path / "lock").chmod(0o640)
    jobs = tmp_path / "jobs"
    for name in ("thesis", "job_applications", named("twice")):
        (jobs / name / "chapter-1").mkdir(parents=True)
    for name in ("notes.txt", named("file")):
        (jobs / name).write_text("mine")
    (jobs / named("link")).symlink_to(jobs / "thesis")
    (tmp_path / "unreadable-jobs" / named("twice") / "of-an-earlier-start").mkdir(parents=True)
    (tmp_path / "photos").mkdir()
    tmp_path.chmod(0o755)
    before = sorted(tmp_path.rglob("*"))
    store = JobFolders(tmp_path, RECORDS)
    assert store.records() == []
    store.close()
    assert sorted(tmp_path.rglob("*")) == before
    assert {path.read_text() for path in before if path.is_file()} == {"mine"}
    assert (_mode(tmp_path), _mode(tmp_path / "lock")) == (0o755, 0o640)


def test_a_file_beside_those_of_a_job_stays(store, tmp_path):
    """Only what the server wrote is removed with the job."""
    store.add(record(), io.BytesIO(b"audio"))
    (tmp_path / "jobs" / FIRST / "remarks.txt").write_text("mine")
    store.remove(FIRST)
    assert [path.name for path in (tmp_path / "jobs" / FIRST).iterdir()] == ["remarks.txt"]


def test_what_the_disk_does_not_give_now_is_not_removed(store, monkeypatch):
    """A fault of a network's disk, or too many open files, cost no job."""
    store.add(record(), io.BytesIO(b"audio"))

    def failing(_):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as faulty:
        faulty.setattr("pathlib.Path.read_bytes", failing)
        assert store.records() == []
    assert [job.id for job in store.records()] == [FIRST]


def test_one_directory_is_one_servers(store, tmp_path):
    """A second server is told so; when the first has gone it may have it."""
    with pytest.raises(JobsUnavailable):
        JobFolders(tmp_path, RECORDS)
    store.close()
    JobFolders(tmp_path, RECORDS).close()


def test_a_link_in_the_place_of_the_lock_is_not_followed(tmp_path):
    """A user who can write into the directory must not have the server open a file elsewhere."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("mine")
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "lock").symlink_to(elsewhere)
    with pytest.raises(JobsUnavailable):
        JobFolders(tmp_path / "state", RECORDS)


def test_a_place_that_cannot_be_used_is_named(tmp_path):
    """A file where the directory should be."""
    (tmp_path / "state").write_text("")
    with pytest.raises(JobsUnavailable, match="STATE_DIR"):
        JobFolders(tmp_path / "state", RECORDS)


def test_a_recording_that_breaks_off_leaves_nothing(store, tmp_path):
    """A disk that is full in the middle of the upload: the job is refused and its folder gone."""

    class Full(io.BytesIO):
        def read(self, size=-1):
            raise OSError(28, "No space left on device")

    with pytest.raises(JobsUnavailable, match="No space"):
        store.add(record(), Full())
    assert not list((tmp_path / "jobs").iterdir())


def test_a_directory_that_is_gone_refuses_the_job(store, tmp_path):
    """The place for a job cannot be made: that is the same refusal, not a fault without a name."""
    (tmp_path / "jobs").rmdir()
    with pytest.raises(JobsUnavailable, match="No such file"):
        store.add(record(), io.BytesIO(b"audio"))


def test_what_cannot_be_written_whole_leaves_no_part(store, tmp_path, monkeypatch):
    """A disk that is full in the middle of a result: its beginning does not stay on it."""
    store.add(record(), io.BytesIO(b"audio"))
    monkeypatch.setattr(os, "fsync", _full)
    with pytest.raises(OSError, match="No space"):
        store.end(record(state=RecordState.SUCCEEDED), b"words")
    assert sorted(path.name for path in (tmp_path / "jobs" / FIRST).iterdir()) == ["job.json"]


def test_a_result_takes_the_space_of_its_recording(store, tmp_path, monkeypatch):
    """A disk that has become full costs no result that fits where the recording was."""
    store.add(record(), io.BytesIO(b"audio"))

    def full(fd, fsync=os.fsync):
        if (tmp_path / "jobs" / FIRST / "recording").exists():
            _full(fd)
        fsync(fd)

    monkeypatch.setattr(os, "fsync", full)
    done = record(state=RecordState.SUCCEEDED, result=RESULT)
    store.end(done, b"words")
    assert (store.records(), content(store)) == ([done], b"words")


def test_a_removed_job_stays_removed(store, tmp_path, monkeypatch):
    """One that ends while it is being removed does not write itself anew into its half removed folder."""
    store.add(record(), io.BytesIO(b"audio"))
    folder = tmp_path / "jobs" / FIRST
    ending = threading.Thread(target=_quietly, args=(store.update, record(state=RecordState.SUCCEEDED)))
    rmdir = Path.rmdir

    def removed(path):
        ending.start()
        ending.join(0.3)
        rmdir(path)

    monkeypatch.setattr(Path, "rmdir", removed)
    store.remove(FIRST)
    ending.join()
    assert not folder.exists()


def test_what_cannot_be_removed_is_said(store, monkeypatch):
    """A directory that has become read-only."""
    store.add(record(), io.BytesIO(b"audio"))

    def read_only(path, missing_ok):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "unlink", read_only)
    with pytest.raises(JobsUnavailable, match="Read-only"):
        store.remove(FIRST)


def _full(_):
    raise OSError(28, "No space left on device")


def _quietly(act, *arguments):
    with suppress(OSError):
        act(*arguments)
