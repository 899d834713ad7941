"""Jobs on disk."""

import io
import json
import os
import shutil
import stat
import threading
import time
from contextlib import suppress

import pytest

from asr_server.core.errors import JobsUnavailable
from asr_server.service.jobs.record import JobRecord, JobState
from asr_server.service.jobs.store import JobStore
from asr_server.service.requests import (
    OutputOptions,
    ResponseFormat,
    Result,
    ServerVad,
    SubtitleRequest,
    TranscriptionRequest,
    TranslationRequest,
    WordTimes,
)


@pytest.fixture
def store(tmp_path):
    made = JobStore(tmp_path)
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


def record(identity="job_1", request=REQUESTS[0], **changes):
    return JobRecord(identity, request, time.time(), **changes)


def test_what_is_kept_comes_back(store):
    """Record, recording and result are what was given, in the order in which jobs came."""
    jobs = [record(f"job_{name}", request) for name, request in zip("cba", REQUESTS, strict=True)]
    for job in jobs:
        store.add(job, io.BytesIO(b"audio"))
    assert store.records() == jobs
    with store.recording("job_a") as file:
        assert file.read() == b"audio"


def test_a_finished_job_keeps_its_result_and_not_its_recording(store):
    """The upload is gone as soon as nobody needs it."""
    store.add(record(), io.BytesIO(b"audio"))
    done = record(state=JobState.SUCCEEDED, result=RESULT)
    store.finish(done, b"words")
    assert store.result("job_1") == b"words"
    assert store.records() == [done]
    with pytest.raises(FileNotFoundError):
        store.recording("job_1")


# A record of the version before, which had no number.
OLD_REQUEST = {"task": "transcription", "options": {}, "shape": {}}
OLD = {"id": "old", "created_at": 1.0, "state": "queued", "request": OLD_REQUEST}


@pytest.mark.parametrize("version", [None, 1, 3])
def test_what_cannot_be_read_is_moved_aside(store, tmp_path, version):
    """A job that was half made, and one of another version, do not stop the others, and lose nothing."""
    store.add(record(), io.BytesIO(b"audio"))
    jobs, aside = tmp_path / "jobs", tmp_path / "unreadable-jobs"
    for name in ("job_half", "job_old"):
        (jobs / name).mkdir()
        (jobs / name / "recording").write_bytes(b"theirs")
    (jobs / "job_old" / "job.json").write_text(json.dumps({"version": version, "record": OLD} if version else OLD))
    for _ in range(2):
        assert [job.id for job in store.records()] == ["job_1"]
        assert [path.name for path in jobs.iterdir()] == ["job_1"]
        assert sorted(path.name for path in aside.iterdir()) == ["job_half", "job_old"]
    assert {(folder / "recording").read_bytes() for folder in aside.iterdir()} == {b"theirs"}


def test_nobody_else_can_read_it(tmp_path):
    """Neither the jobs nor the directory around them, where the server makes it."""
    JobStore(tmp_path / "state").close()
    assert [stat.S_IMODE((tmp_path / "state" / name).stat().st_mode) for name in ("", "jobs")] == [0o700, 0o700]


def test_what_is_no_job_is_left_alone(store, tmp_path):
    """STATE_DIR may be a directory that somebody else uses too, such as a home with a folder named jobs."""
    thesis = tmp_path / "jobs" / "thesis" / "chapter-1"
    thesis.mkdir(parents=True)
    (tmp_path / "jobs" / "notes.txt").write_text("mine")
    (tmp_path / "jobs" / "job_half").mkdir()
    (tmp_path / "unreadable-jobs" / "job_half" / "of-an-earlier-start").mkdir(parents=True)
    assert store.records() == []
    assert thesis.is_dir()
    assert (tmp_path / "jobs" / "notes.txt").read_text() == "mine"
    assert (tmp_path / "jobs" / "job_half").is_dir()


def test_what_the_disk_does_not_give_now_is_not_removed(store, monkeypatch):
    """A fault of a network's disk, or too many open files, cost no job."""
    store.add(record(), io.BytesIO(b"audio"))

    def failing(_):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as faulty:
        faulty.setattr("pathlib.Path.read_bytes", failing)
        assert store.records() == []
    assert [job.id for job in store.records()] == ["job_1"]


def test_one_directory_is_one_servers(store, tmp_path):
    """A second server is told so; when the first has gone it may have it."""
    with pytest.raises(JobsUnavailable):
        JobStore(tmp_path)
    store.close()
    JobStore(tmp_path).close()


def test_a_place_that_cannot_be_used_is_named(tmp_path):
    """A file where the directory should be."""
    (tmp_path / "state").write_text("")
    with pytest.raises(JobsUnavailable, match="STATE_DIR"):
        JobStore(tmp_path / "state")


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
        store.finish(record(state=JobState.SUCCEEDED), b"words")
    assert sorted(path.name for path in (tmp_path / "jobs" / "job_1").iterdir()) == ["job.json", "recording"]


def test_a_removed_job_stays_removed(store, tmp_path, monkeypatch):
    """One that ends while it is being removed does not write itself anew into its half removed folder."""
    store.add(record(), io.BytesIO(b"audio"))
    folder = tmp_path / "jobs" / "job_1"
    ending = threading.Thread(target=_quietly, args=(store.update, record(state=JobState.SUCCEEDED)))

    def removed(path, **_):
        for file in path.iterdir():
            file.unlink()
        ending.start()
        ending.join(0.3)
        with suppress(OSError):
            path.rmdir()

    monkeypatch.setattr(shutil, "rmtree", removed)
    store.remove("job_1")
    ending.join()
    assert not folder.exists()


def _full(_):
    raise OSError(28, "No space left on device")


def _quietly(act, *arguments):
    with suppress(OSError):
        act(*arguments)
